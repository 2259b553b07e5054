// The `rehearse` command: parses the command line, runs one subcommand, and turns every error into
// one message and an exit status. Exit statuses: 0 success; 1 the run failed; 2 refused before the
// first step; 128 + n after signal n.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "cli/console/command.h"
#include "cli/console/guarded.h"
#include "cli/console/parse_errors.h"

namespace rehearse::cli {
namespace {

int main_of(int argc, char** argv) {
  Context context{.version = REHEARSE_VERSION};
  context.arguments.assign(argv, argv + argc);
  CLI::App app("Rehearse a training run before you pay for it: simulate it, then really run it.",
               "rehearse");
  app.set_version_flag("--version", "rehearse " + context.version);
  app.set_help_all_flag("--help-all", "Help of every command");
  app.require_subcommand(1);
  app.add_flag("--json", context.json, "Print JSON (schema in docs/cli.md) instead of text");
  app.add_flag("-q,--quiet", context.quiet, "Print no progress");
  app.add_option("--set", context.set,
                 "Override a key of the job; no value: its default; may be repeated")
      ->type_name("KEY.PATH=VALUE")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.footer(
      "examples:\n"
      "  rehearse simulate experiments/paper-ddp.toml\n"
      "  rehearse compare experiments/paper-ddp.toml --methods ddp,zero2,1f1b --report out.html\n"
      "  rehearse train experiments/demo-ddp.toml --nproc 2 --set train.steps=50\n"
      "exit status: 0 good, 1 the run failed, 2 refused before its first step, 128+n signal n");
  add_simulate(app, context);
  add_compare(app, context);
  add_diff(app, context);
  add_sweep(app, context);
  add_plan(app, context);
  add_collective(app, context);
  add_aggregate(app, context);
  add_faults(app, context);
  add_validate(app, context);
  add_calibrate(app, context);
  add_train(app, context);
  add_chaos(app, context);
  add_profile(app, context);
  add_program(app, context);
  add_list(app, context);
  add_doctor(app, context);
  add_completion(app, context);
  add_help(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return complain(refused, explain(app, e));
  }
  return guarded(context.run);
}

}  // namespace
}  // namespace rehearse::cli

int main(int argc, char** argv) {
  int status = rehearse::cli::failed;
  try {
    status = rehearse::cli::main_of(argc, argv);
  } catch (const std::exception& e) {
    status = rehearse::cli::complain(rehearse::cli::failed, e.what());
  }
  // Nothing of ours is left to do. LibTorch's destructors would take 70 ms in the launcher and in
  // each rank, to free what ends with the process.
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}
