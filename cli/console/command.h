// How subcommands add themselves to the command line. A subcommand's callback only stores its work
// in Context::run, and `main` runs that work after the whole command line is parsed. So an error of
// the command line never comes after work has begun. This header includes CLI11, which compiles
// slowly; a file that needs only the context includes cli/console/context.h.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "cli/console/context.h"

namespace rehearse::cli {

// Each adds one subcommand to `app`; each is in a file of its own in cli/commands/.
void add_simulate(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_diff(CLI::App& app, Context& context);
void add_sweep(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_collective(CLI::App& app, Context& context);
void add_aggregate(CLI::App& app, Context& context);
void add_faults(CLI::App& app, Context& context);
void add_validate(CLI::App& app, Context& context);
void add_calibrate(CLI::App& app, Context& context);
void add_train(CLI::App& app, Context& context);
void add_chaos(CLI::App& app, Context& context);
void add_program(CLI::App& app, Context& context);
void add_profile(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_help(CLI::App& app, Context& context);

/// Adds a subcommand that also takes the global options. `examples`: the last lines of its --help.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& summary,
                      const std::string& examples);
/// Adds the required positional argument JOB.toml.
CLI::Option* add_job(CLI::App& command, std::string& path);

}  // namespace rehearse::cli
