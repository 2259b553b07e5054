// `rehearse profile`: measures this machine with as many ranks running as will run later, into the
// file that a job's cluster.profile names.
#include "engine/profile.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/launch_ranks.h"
#include "engine/errors.h"
#include "engine/model.h"
#include "engine/names.h"
#include "runtime/environment.h"
#include "runtime/profiler.h"

namespace rehearse {
namespace {

struct Options {
  std::string output = {}, model = "gpt-demo", optimizer = "adamw";
  std::vector<int> samples = {1, 2, 4}, tp = {1};
  int nproc = 0, seq_len = 0, threads = 0;
};

int run_profile(const Context& context, const Options& options) {
  check_writable("-o", options.output);
  const ModelSpec model = load_model(options.model, options.seq_len);
  if (options.nproc > 0) return start_ranks(context.arguments, options.nproc);
  ProfileSettings settings;
  settings.samples = options.samples;
  settings.tensor_parallel = options.tp;
  settings.optimizer = *from_name<Optimizer>(options.optimizer);
  settings.threads = options.threads;
  const Environment environment = detect_environment();
  const Profile profile = measure_profile(model, settings, environment);
  if (environment.rank != 0) return good;
  write_file(options.output, to_json(profile));
  if (context.json)
    std::cout << to_json(profile);
  else if (!context.quiet)
    fmt::print(
        "{}: {} with {} rank{} of {} thread{}: {} segment times, {} collectives, {} transfers\n",
        options.output, profile.host, profile.ranks, profile.ranks == 1 ? "" : "s",
        profile.threads_per_rank, profile.threads_per_rank == 1 ? "" : "s", profile.segments.size(),
        profile.collectives.size(), profile.transfers.size());
  return good;
}

}  // namespace

void add_profile(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, "profile", "Measure this machine for simulations of it",
      "  rehearse profile -o profile.json --nproc 2\n"
      "  rehearse simulate experiments/demo-ddp.toml --set cluster.profile=profile.json");
  auto options = std::make_shared<Options>();
  command->add_option("-o,--output", options->output, "Where to write it")
      ->type_name("FILE")
      ->required();
  command->add_option("--nproc", options->nproc, "Ranks that run while it measures")
      ->check(CLI::Range(1, 4096));
  command->add_option("--model", options->model, "Model whose segments are timed")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens a sample; default: the model's")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--samples", options->samples, "Samples of a micro-batch, several sizes")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--tp", options->tp, "Tensor-parallel sizes")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--optimizer", options->optimizer, "adamw or sgd")
      ->check(CLI::IsMember(names_of<Optimizer>()))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Per rank; default: cores / ranks")
      ->check(CLI::Range(1, 4096));
  command->callback([&context, options] {
    context.run = [&context, options] { return run_profile(context, *options); };
  });
}

}  // namespace rehearse
