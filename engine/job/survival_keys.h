// Reads [faults], [checkpoint] and [recovery] of a job file. Internal to engine/job.
#pragma once
#include "engine/base/files/config.h"
#include "engine/job/survival.h"

namespace rehearse::job {

/// They throw InputError for values of a wrong type or range, and for keys that contradict.
Faults read_fault_keys(const Config& c);
Checkpoint read_checkpoint_keys(const Config& c);
Recovery read_recovery_keys(const Config& c);

}  // namespace rehearse::job
