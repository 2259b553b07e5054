#include "cli/console/parse_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// "; did you mean KNOWN?" with the nearest known word, or "." when no known word is near.
std::string meant(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "." : fmt::format("; did you mean {}?", near);
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

}  // namespace

std::string unknown_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> known = commands_of(app);
  return fmt::format("unknown command {}{} Commands: {}. See rehearse --help", word,
                     meant(word, known), fmt::join(known, ", "));
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const std::string help =
      fmt::format("rehearse {}--help", chosen.empty() ? "" : chosen.front()->get_name() + " ");
  const std::vector<std::string> extra = app.remaining(true);
  const std::string word = extra.empty() ? "" : extra.front();
  if (word.starts_with('-') && word != "-") {
    std::vector<std::string> known = flags_of(app);
    if (!chosen.empty())
      for (const std::string& name : flags_of(*chosen.front())) known.push_back(name);
    const std::string flag = word.substr(0, word.find('='));
    return fmt::format("unknown option {}{} See {}", flag, meant(flag, known), help);
  }
  if (chosen.empty())
    return word.empty() ? fmt::format("which command? One of {}. See {}",
                                      fmt::join(commands_of(app), ", "), help)
                        : unknown_command(app, word);
  if (!word.empty()) return fmt::format("{} is one argument too many. See {}", word, help);
  return fmt::format("{}. See {}", error.what(), help);
}

}  // namespace rehearse::cli
