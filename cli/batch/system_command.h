// Calls the commands of a batch system.
#pragma once
#include <string>
#include <vector>

#include "cli/console/spawn.h"

namespace rehearse::cli {

/// "1-3,7"
std::string ranges_of(const std::vector<int>& numbers);
/// Runs a command of `system`, as after --on, and returns its end and all its words. Ctrl-C does
/// not reach the command: it ends whole, so that no submitted job is lost. Throws InputError with
/// `install` when there is no such program.
Finished call_system(const std::string& system, const std::vector<std::string>& command,
                     const std::string& install);
/// One line of what a command has said: the last one that is not empty.
std::string last_line(const std::string& text);

}  // namespace rehearse::cli
