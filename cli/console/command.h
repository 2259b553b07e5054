// What every subcommand shares: the options that may stand before or after its name, and how it
// hands its work to `main` (parse everything first, run afterwards, so that no error of the command
// line comes after work was begun). CLI11 takes longer to compile than most files here: what needs
// none of it includes cli/console/context.h.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "cli/console/context.h"

namespace rehearse::cli {

// One a file: adds the subcommand to `app`.
void add_simulate(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_train(CLI::App& app, Context& context);
void add_program(CLI::App& app, Context& context);
void add_profile(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_help(CLI::App& app, Context& context);

/// A subcommand whose flags may be mixed with the global ones; `examples` end its --help.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& summary,
                      const std::string& examples);
/// The positional JOB.toml.
void add_job(CLI::App& command, std::string& path);

}  // namespace rehearse::cli
