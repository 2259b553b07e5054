// Implements --nproc: starts this command again as several ranks.
#pragma once
#include <string>
#include <vector>

#include "runtime/control/launcher.h"

namespace rehearse::cli {

/// Starts ranks with this command line without --nproc, waits for them and returns their end.
runtime::Launched start_ranks(const std::vector<std::string>& arguments,
                              const runtime::LaunchOptions& options);

}  // namespace rehearse::cli
