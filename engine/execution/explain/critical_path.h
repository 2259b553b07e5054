// The critical path of a run: the chain of ops that the end of a step had to wait for. The walk
// begins at the op that ended last and goes back from each op to the one that it waited for
// longest, until a given time. So the ops of the path follow one another without a gap, and their
// seconds sum to the time between the two ends.
//
//   rank 0  |F0  |F1  |      |B0       |B1       |     path: F0 send F1 B1 send B1, of both ranks
//   rank 1       |F0  |B0       |F1  |B1   |
//
// Whatever is not on the path could take a little longer without making the step longer.
#pragma once
#include <vector>

#include "engine/execution/explain/history.h"

namespace rehearse::execution {

/// A part of the path. `op.op` none: nothing that the trace holds explains this time; `op` then
/// says by role and place who waited.
struct PathOp {
  Instance op = {};
  double start = 0, end = 0;  // seconds since the run began
};

/// The path to the end of step `last`, back to the time `from`, in order of time. The first part is
/// cut at `from`. The seconds of all parts sum to the end of the step less `from`. `last` must have
/// run.
std::vector<PathOp> critical_path(History& history, int last, double from);

/// When a step and all earlier ones have ended, in seconds since the run began; step -1 stands for
/// the start of the run, 0 s.
double end_of_step(const History& history, int step);

}  // namespace rehearse::execution
