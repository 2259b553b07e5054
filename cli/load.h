// From the command line to a job.
#pragma once
#include <string>

#include "cli/command.h"
#include "engine/job.h"

namespace rehearse {

/// The job with the command line's --set.
Job load(const Context& context, const std::string& path);
/// The same for a run of `ranks` processes: where neither the file nor --set says how many ranks
/// the world has, a cluster whose ranks share a host's cores gets that many.
Job load_for(const Context& context, const std::string& path, int ranks);

}  // namespace rehearse
