// The command line as data: commands, options and their texts, read from CLI11. The manual page and
// the shell completions are made from this data, so they always agree with the help.
#pragma once
#include <string>
#include <vector>

#include "cli/console/cli11_fwd.h"

namespace rehearse::cli {

/// An option, or a positional argument (then without flags).
struct DescribedOption {
  std::vector<std::string> flags = {};    // "-o", "--output"
  std::string value = {};                 // "FILE", as in the help; empty: takes no value
  std::vector<std::string> choices = {};  // all possible values; empty: not a fixed list
  bool file = false;                      // the value is a path
  std::string text = {};
};

struct DescribedCommand {
  std::string name = {}, text = {};
  std::vector<DescribedOption> options = {}, positionals = {};
  std::string footer = {};
};

/// The first entry is the program itself, whose options every command takes too. The commands
/// follow.
std::vector<DescribedCommand> describe(const CLI::App& app);

/// What `rehearse --help` prints; with the name of a command, what `rehearse COMMAND --help`
/// prints. Throws InputError when there is no such command.
std::string help_of(const CLI::App& app, const std::string& command);
/// The completion script of the program for a shell. `shell`: one of shells().
std::string completion(const CLI::App& app, const std::string& shell);
const std::vector<std::string>& shells();
/// The manual page (section 1) in roff.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace rehearse::cli
