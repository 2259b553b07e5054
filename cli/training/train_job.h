// `rehearse train` once its command line is read.
#pragma once
#include "cli/commands/training.h"

namespace rehearse::cli {

int train_job(const Context& context, const TrainFlags& options);

}  // namespace rehearse::cli
