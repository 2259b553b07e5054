// The command line as it describes itself: what the man page and the shells' completions are made
// of, so that they cannot disagree with the help.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rehearse::cli {

/// An option, or a positional argument where it has no flags.
struct DescribedOption {
  std::vector<std::string> flags = {};    // "-o", "--output"
  std::string value = {};                 // "FILE", as the help has it; empty: takes none
  std::vector<std::string> choices = {};  // of the value, where they are few
  bool file = false;                      // the value is a path
  std::string text = {};
};

struct DescribedCommand {
  std::string name = {}, text = {};
  std::vector<DescribedOption> options = {}, positionals = {};
  std::string footer = {};
};

/// The program itself first, whose options every command takes too; then its commands.
std::vector<DescribedCommand> describe(const CLI::App& app);

/// The script that completes the program's command line. `shell`: one of shells().
std::string completion(const CLI::App& app, const std::string& shell);
const std::vector<std::string>& shells();
/// In roff, of section 1.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace rehearse::cli
