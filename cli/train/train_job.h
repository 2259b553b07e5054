// `rehearse train` after its command line is parsed.
#pragma once
#include "cli/commands/training.h"

namespace rehearse::cli {

/// Starts the ranks (--nproc), or runs as one of them. Returns the exit status; throws InputError,
/// ProgramError or BackendError.
int train_job(const Context& context, const TrainFlags& options);

}  // namespace rehearse::cli
