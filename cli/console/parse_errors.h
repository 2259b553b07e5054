// What is wrong with a command line, and what may have been meant.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace rehearse::cli {

/// One line for a failed parse of `app`: an unknown command or option with the nearest known one,
/// else CLI11's own words; then where help is.
std::string explain(const CLI::App& app, const CLI::ParseError& error);
/// The one line for a command that there is not.
std::string unknown_command(const CLI::App& app, const std::string& word);

}  // namespace rehearse::cli
