// Ranks that are started again after a failure ([recovery] of the job).
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "cli/commands/training.h"
#include "engine/faults/event.h"
#include "engine/job/job.h"
#include "runtime/control/launch/launcher.h"

namespace rehearse::cli {

/// Starts `options.nproc` ranks, each of which does `rank`, and waits for them. After a failure
/// they go on from the newest checkpoint in train.out, at most `recovery.restarts` times, as
/// `recovery.policy` says: restart, all processes anew; spare, the processes that are left and one
/// that stood by; shrink, as many ranks as are left and the method can use; grow, the same, and as
/// many as before once new processes stand by. Each recovery adds a line to
/// train.out/recoveries.jsonl. Returns the exit status of the last start.
int launch_and_recover(const Context& context, const TrainFlags& options, const job::Job& job,
                       const runtime::RankWork& rank);

/// The least and the most nodes that --nnodes states; empty: one. Throws InputError.
std::pair<int, int> node_range(const std::string& nnodes);

/// Throws InputError when [checkpoint], [recovery] or [faults] ask for what only predictions know.
void check_survival(const job::Job& job);
/// The fault trace of the job, checked; null: none. Throws InputError that names an event which
/// real ranks cannot replay.
std::shared_ptr<const faults::Trace> replayed_faults(const job::Job& job);

}  // namespace rehearse::cli
