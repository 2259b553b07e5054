// Error messages for a wrong command line, with the nearest known command or option.
#pragma once
#include <string>

#include "cli/console/cli11_fwd.h"

namespace rehearse::cli {

/// The one-line message for a failed parse of `app`: the unknown command or option with the nearest
/// known one, or else CLI11's own message; then the command that prints the help.
std::string explain(const CLI::App& app, const CLI::ParseError& error);
/// The one-line message for an unknown command.
std::string unknown_command(const CLI::App& app, const std::string& word);

}  // namespace rehearse::cli
