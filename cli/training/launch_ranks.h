// Implements --nproc: starts this command again as several ranks.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

/// Starts `nproc` ranks with this command line without --nproc, waits for them and returns their
/// exit status.
int start_ranks(const std::vector<std::string>& arguments, int nproc);

}  // namespace rehearse::cli
