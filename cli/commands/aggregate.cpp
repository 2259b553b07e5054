// `rehearse aggregate`: one round of secure aggregation of a job with federated averaging, its
// messages and its time, and a real round in processes of this machine.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/secure/group.h"
#include "study/load.h"
#include "study/parts/aggregation.h"
#include "study/prediction/study.h"

namespace rehearse::cli {
namespace {

struct AggregateOptions {
  std::string job = {}, fidelity = "fluid", timeout = "10min";
  std::string mask_rate = fmt::format("{}GB/s", secure::mask_rate / 1e9);
  std::string neighbours = {}, threshold = {}, clip = {}, levels = {};
  study::AggregationQuestion question = {};
};

int run_aggregate(const Context& context, const AggregateOptions& options) {
  study::AggregationQuestion question = options.question;
  question.fidelity = *from_name<study::Fidelity>(options.fidelity);
  question.mask_rate = parse_bandwidth(options.mask_rate);
  if (question.mask_rate.value <= 0)
    throw InputError(fmt::format("--mask-rate {}: must be above 0", options.mask_rate));
  question.timeout = duration_of("--timeout", options.timeout, limits::patience);
  std::vector<std::string> set = context.set;
  set.emplace_back("method.secure=true");
  for (const auto& [key, value] : {std::pair{"neighbours", options.neighbours},
                                   {"threshold", options.threshold},
                                   {"clipping_range", options.clip},
                                   {"levels", options.levels}})
    if (!value.empty()) set.push_back(fmt::format("method.{}={}", key, value));
  const study::Aggregation found = aggregate(study::load(options.job, set), question);
  if (context.json)
    std::cout << text_of(with_header(context, to_json(found)));
  else
    std::cout << describe(found);
  return good;
}

}  // namespace

void add_aggregate(CLI::App& app, Context& context) {
  const Command command(
      app, context, "aggregate", "Predict and run a secure sum of federated averaging",
      "  rehearse aggregate experiments/paper-ddp.toml --set method.name=fedavg\n"
      "  rehearse aggregate job.toml --neighbours 4 --drop 2 --drop 5:unmask --run");
  auto options = std::make_shared<AggregateOptions>();
  command.job(options->job).required();
  command.option("--fidelity", options->fidelity, "How transfers are simulated")
      .one_of(names_of<study::Fidelity>())
      .shows_default();
  const auto key = [&](const char* option, std::string& value, const char* type, const char* name) {
    command.option(option, value, fmt::format("Short for --set method.{}={}", name, type))
        .type(type);
  };
  key("--neighbours", options->neighbours, "N", "neighbours");
  key("--threshold", options->threshold, "N", "threshold");
  key("--clip", options->clip, "X", "clipping_range");
  key("--levels", options->levels, "N", "levels");
  command.option("--elements", options->question.elements, "Numbers of a client; 0: the model's")
      .type("N")
      .between(std::int64_t{0}, std::int64_t{1} << 33)
      .shows_default();
  const auto add_clients = [&](const char* option, std::vector<std::string>& clients,
                               const char* does) {
    command
        .option(option, clients,
                fmt::format("A client {}, before the round mask or the one named; may be "
                            "repeated",
                            does))
        .type("CLIENT[:ROUND]")
        .repeats();
  };
  add_clients("--drop", options->question.leaving, "leaves");
  add_clients("--silent", options->question.silent, "falls silent");
  command.option("--timeout", options->timeout, "For which the server waits for a silent client")
      .type("TIME")
      .shows_default();
  command.option("--mask-rate", options->mask_rate, "Bytes of masks that a rank makes in a second")
      .type("RATE")
      .shows_default();
  command.option("--seed", options->question.seed, "Of the order of the ring, and of drawn numbers")
      .type("N")
      .shows_default();
  command.flag("--run", options->question.run,
               "Also run the round, with a process for each client");
  command.runs([&context, options] { return run_aggregate(context, *options); });
}

}  // namespace rehearse::cli
