// --nproc: this command again, as so many ranks.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

/// Starts `nproc` ranks with this command line less --nproc and waits; returns their exit status.
int start_ranks(const std::vector<std::string>& arguments, int nproc);

}  // namespace rehearse::cli
