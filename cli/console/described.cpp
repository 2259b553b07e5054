#include "cli/console/described.h"

#include <CLI/CLI.hpp>

#include "cli/console/parse_errors.h"
#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

/// analytic, fluid and chunk of "TEXT:{analytic,fluid,chunk}"; empty when the type has no braces.
std::vector<std::string> choices_of(const std::string& type) {
  const auto open = type.find('{');
  if (open == std::string::npos || type.back() != '}') return {};
  return CLI::detail::split(type.substr(open + 1, type.size() - open - 2), ',');
}

DescribedOption described(const CLI::Option& option) {
  DescribedOption out{.text = option.get_description()};
  for (const std::string& name : option.get_snames()) out.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.flags.push_back("--" + name);
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() > 0) out.value = type;
  if (option.get_positional()) out.value = option.get_name(true);
  out.choices = choices_of(type);
  const std::string kind = type.substr(0, type.find(':'));
  out.file = kind == "FILE" || kind == "PATH" || out.value == "JOB.toml";
  return out;
}

DescribedCommand described(const CLI::App& app) {
  DescribedCommand out{
      .name = app.get_name(), .text = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options())
    (option->get_positional() ? out.positionals : out.options).push_back(described(*option));
  return out;
}

}  // namespace

std::vector<DescribedCommand> describe(const CLI::App& app) {
  std::vector<DescribedCommand> out{described(app)};
  for (const CLI::App* command : app.get_subcommands({})) out.push_back(described(*command));
  std::vector<std::string> names;
  for (std::size_t i = 1; i < out.size(); ++i) names.push_back(out[i].name);
  for (DescribedCommand& command : out)
    for (DescribedOption& argument : command.positionals)
      if (argument.value == "COMMAND") argument.choices = names;
  return out;
}

std::string help_of(const CLI::App& app, const std::string& command) {
  // app.help() would print the help of the chosen command, which is `help` itself.
  if (command.empty())
    return app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal);
  for (const CLI::App* known : app.get_subcommands({}))
    if (known->get_name() == command) return known->help(app.get_name());
  throw InputError(unknown_command(app, command));
}

}  // namespace rehearse::cli
