// Where a job may divide its training text by source (train.split), and among more clients than
// ranks (train.clients).
#pragma once
#include "engine/base/files/config.h"
#include "engine/job/job.h"

namespace rehearse::job {

/// Throws InputError for text divided by source where the division would change in mid-run, and for
/// clients that no rank can play.
/// `train`: the section.
void check_split(const Config& train, const Job& job);

}  // namespace rehearse::job
