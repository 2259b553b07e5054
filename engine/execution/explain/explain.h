// Explains a step: where its time goes, the critical path, how busy links and devices are, and what
// more of each of them would bring. It explains the analytic schedule, that is the dry run without
// contention between ops and without random disturbances. Declared stragglers and slow links count.
//
// Equal ranks are computed once (fold.h) where all lanes are in order. Programs with mailboxes,
// lanes by arrival or free-running roles are explained from the trace of the event queue, rank by
// rank. What more would bring is found by running again, so it holds for both.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/explain/breakdown.h"
#include "engine/execution/explain/gains.h"
#include "engine/execution/explain/stretches.h"

namespace rehearse::execution {

/// Seconds a step of one part. `latency`: the part of `path` that is left if all links were
/// infinitely wide; for communication only.
struct ExplainedPart {
  WorkPart part = {};
  double path = 0, ranks = 0, latency = 0;
};

/// Links of one role that are equally busy. `utilisation`: bytes a step / (bandwidth x step time).
/// It may exceed 1, because the analytic schedule lets ops of different lanes use a link at once.
struct LinkUse {
  std::string role = {};   // as of cluster::LinkRole
  std::string first = {};  // the name of the first of them
  int count = 0;
  double bytes = 0;  // of each, a step
  BytesPerSecond bandwidth = {};
  double utilisation = 0;
};

/// Ranks that are on one kind of device, in one role, and equally busy.
struct DeviceUse {
  std::string kind = {}, role = {};
  Id rank = none;  // the first of them
  int ranks = 0;
  double busy = 0;  // as of PlaceUse
};

struct Explanation {
  double step_s = 0;  // mean over the steady steps
  Steps steps = {};
  std::vector<ExplainedPart> parts = {};  // those that take time, in the order of WorkParts::all()
  double bubble_fraction = 0, exposed_comm_s = 0;  // as of execution::Metrics
  std::vector<Stretch> path = {};  // of the middle steady step, times from the step's begin
  std::set<std::pair<Id, Id>> critical = {};  // rank and op of all that is on `path`
  std::vector<LinkUse> links = {};            // the busiest first; unused ones are left out
  std::vector<DeviceUse> devices = {};        // the busiest first
  std::vector<Gain> gains = {};               // the largest first
};

/// The steps that explain() runs at most, unless the program is large.
inline constexpr Steps explained_steps = {.warm_up = 5, .steady = 50};
/// How many op instances explain() keeps; a program with more of them is explained over fewer
/// steps.
inline constexpr std::int64_t most_kept = 12'000'000;

/// `linked` is the program as it is predicted, with the host's lane. Throws InputError when the
/// shortest run, of 2 steps to warm up and one to explain, has more than `most` instances (a rank
/// or class of equal ranks, an op, a step). Deterministic.
Explanation explain(const link::OrderedProgram& linked, const Pricing& pricing,
                    std::int64_t most = most_kept);

}  // namespace rehearse::execution
