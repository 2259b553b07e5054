// How subcommands add themselves to the command line, which CLI11 parses. A subcommand only stores
// its work in Context::run, and `main` runs that work after the whole command line is parsed. So an
// error of the command line never comes after work has begun.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cli/console/cli11_fwd.h"
#include "cli/console/context.h"

namespace rehearse::cli {

/// A handle of an option or positional argument. Each function returns it, so that calls chain.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  /// What the help calls the value, as in FILE.
  Option type(const std::string& name) const;
  /// Other values are refused. The help shows the limits and the names.
  template <class T>
  Option between(T least, T most) const;
  Option one_of(const std::vector<std::string>& names) const;
  Option existing_file() const;
  /// The help shows the value that the variable has now.
  Option shows_default() const;
  Option required() const;
  /// Of a list: may be given several times, each time with one value.
  Option repeats() const;
  /// Of a list: one value may hold several, with commas between them.
  Option comma_separated() const;
  Option needs(Option other) const;
  Option excludes(Option other) const;
  /// `name`: of an option that the command already has.
  Option excludes(const std::string& name) const;

 private:
  CLI::Option* option_;
};

/// A handle of a subcommand, which also takes the global options.
class Command {
 public:
  /// Adds it to `app`. `examples`: the last lines of its --help.
  Command(CLI::App& app, Context& context, const std::string& name, const std::string& summary,
          const std::string& examples);

  /// Adds an option that sets `value`: text, a number, or a list of them (command.cpp has each
  /// type). `names`: "-o,--output"; without hyphens: a positional argument.
  template <class T>
  Option option(const std::string& names, T& value, const std::string& help) const;
  Option flag(const std::string& names, bool& value, const std::string& help) const;
  /// Adds the positional argument JOB.toml.
  Option job(std::string& path) const;
  /// What the program does when this command is chosen; returns an exit status.
  void runs(std::function<int()> work) const;

 private:
  CLI::App* command_;
  Context* context_;
};

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
void add_list(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_help(CLI::App& app, Context& context);

}  // namespace rehearse::cli
