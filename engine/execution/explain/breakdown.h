// Where the time of a step goes, in two views. Both sum exactly to the step time.
//
// The path: the seconds of each part on the critical path. A pipeline has no bubble in this view,
// because while one rank waits, the path is on the rank that it waits for.
//
// The ranks: the mean over all ranks that compute, of what a rank does with the step. Each moment
// belongs to the first of these that holds, as the metrics define bubble and exposed communication:
//   1. its compute lane runs an op: the part of this op;
//   2. a communication op of the rank runs (exposed communication): the part of the op that began
//      first, and when that one ends, the next one's;
//   3. an op of another lane but the host's runs: the part of this op;
//   4. all that the next op of the compute lane needs is there, except that the host has not issued
//      it, and the host is issuing: the host;
//   5. otherwise the rank waits for other ranks, or for the host of another one.
// So 2 to 5 together are the bubble, and 2 is the exposed communication.
#pragma once
#include <span>
#include <vector>

#include "engine/execution/explain/critical_path.h"
#include "engine/execution/explain/work_parts.h"

namespace rehearse::execution {

/// Seconds a step. `idle`: the part of `ranks` in which the compute lane is idle.
struct PartTime {
  double path = 0, ranks = 0, idle = 0;
};

/// What one place (a rank, or a class of equal ranks) does. `busy`: the fraction of the time in
/// which its compute lane works; of a server, in which any local op runs.
struct PlaceUse {
  Id role = none, place = none;
  Id rank = none;  // the first of `ranks` equal ranks
  int ranks = 0;
  bool computes = false;
  double busy = 0;
};

struct Breakdown {
  std::vector<PartTime> parts = {};   // by WorkParts::all()
  std::vector<PlaceUse> places = {};  // by role and place
  double bubble_fraction = 0;         // as of execution::Metrics
  double exposed_comm_s = 0;
};

/// Of the time from `from` to `until`, which has `steps` steps. `path`: the critical path of that
/// time. The run must go on after `until`, for as many steps as overlap with the last one.
Breakdown break_down(const History& history, const WorkParts& parts, std::span<const PathOp> path,
                     double from, double until, int steps);

}  // namespace rehearse::execution
