// `rehearse aggregate`: one round of secure aggregation of a job with federated averaging, its
// messages and its time, and a real round in processes of this machine.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "study/aggregation.h"
#include "study/load.h"
#include "study/study.h"

namespace rehearse::cli {
namespace {

struct Options {
  std::string job = {}, fidelity = "fluid", mask_rate = {}, timeout = "10min";
  study::AggregationQuestion question = {};
};

int run_aggregate(const Context& context, const Options& options) {
  study::AggregationQuestion question = options.question;
  question.fidelity = *from_name<study::Fidelity>(options.fidelity);
  if (!options.mask_rate.empty()) {
    question.mask_rate = parse_bandwidth(options.mask_rate);
    if (question.mask_rate.value <= 0)
      throw InputError(fmt::format("--mask-rate {}: must be above 0", options.mask_rate));
  }
  question.timeout = duration_of("--timeout", options.timeout, limits::patience);
  const study::Aggregation found = aggregate(study::load(options.job, context.set), question);
  if (context.json)
    std::cout << text_of(with_header(context, to_json(found)));
  else
    std::cout << describe(found);
  return good;
}

}  // namespace

void add_aggregate(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, "aggregate", "Predict and run a secure sum of federated averaging",
                  "  rehearse aggregate experiments/paper-ddp.toml --set method.name=fedavg\n"
                  "  rehearse aggregate job.toml --neighbours 4 --drop 2 --drop 5:unmask --run");
  auto options = std::make_shared<Options>();
  secure::Settings& settings = options->question.settings;
  add_job(*command, options->job);
  command->add_option("--fidelity", options->fidelity, "How transfers are simulated")
      ->check(CLI::IsMember(names_of<study::Fidelity>()))
      ->capture_default_str();
  command
      ->add_option("--neighbours", settings.neighbours,
                   "Clients that share masks with each client; 0: all")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--threshold", settings.threshold,
                   "Shares that open a secret; 0: more than two thirds")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--clip", settings.ring.clip, "Numbers are clipped to this size")
      ->type_name("X")
      ->capture_default_str();
  command->add_option("--levels", settings.ring.levels, "Levels to which numbers are rounded")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--elements", settings.elements, "Numbers of a client; 0: the model's")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 33))
      ->capture_default_str();
  const auto add_clients = [&](const char* option, std::vector<std::string>& clients,
                               const char* does) {
    command
        ->add_option(option, clients,
                     fmt::format("A client {}, before the round mask or the one named; may be "
                                 "repeated",
                                 does))
        ->type_name("CLIENT[:ROUND]")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add_clients("--drop", options->question.leaving, "leaves");
  add_clients("--silent", options->question.silent, "falls silent");
  command
      ->add_option("--timeout", options->timeout, "For which the server waits for a silent client")
      ->type_name("TIME")
      ->capture_default_str();
  command
      ->add_option("--mask-rate", options->mask_rate,
                   "Masks that a rank makes in a second, as in 1GB/s")
      ->type_name("RATE");
  command->add_option("--seed", settings.seed, "Of the order of the ring, and of drawn numbers")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--run", options->question.run,
                    "Also run the round, with a process for each client");
  command->callback([&context, options] {
    context.run = [&context, options] { return run_aggregate(context, *options); };
  });
}

}  // namespace rehearse::cli
