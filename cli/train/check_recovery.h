// What [recovery] asks of a real run, checked before ranks start.
#pragma once
#include "engine/job/job.h"

namespace rehearse::cli {

/// Throws InputError when the job cannot recover as its policy says. `elastic`: with --nnodes.
void check_policy(const job::Job& job, bool elastic);
/// Throws InputError when slow ranks cannot hand samples to others as recovery.slow_rank says.
/// `drains`: a launcher can let the ranks go on with other shares.
void check_slow_rank(const job::Job& job, bool drains);

}  // namespace rehearse::cli
