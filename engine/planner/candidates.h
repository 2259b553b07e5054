// Which plans there are to choose from: every mesh of the world that the model allows, and on each
// the orders of its axes, micro-batches, schedules, sharding, recomputation, bucket sizes and
// shares. What the job's file states is not varied. The order is fixed, the plainer plan first, so
// that ties fall to it.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/plan/plan.h"
#include "engine/planner/planner.h"

namespace rehearse {

struct Candidates {
  std::vector<Plan> plans = {};          // prepared
  std::vector<Infeasible> refused = {};  // what no candidate may be, by reason
  int bucket_sizes = 1;                  // that were tried where buckets matter
};

Candidates candidates(const Job& job, const Profile* profile);

/// The job is of the adaptive method and says that every layer be sparse.
bool must_be_sparse(const Job& job);

/// The keys of [method] that the job's file states and that are therefore kept.
std::vector<std::string> stated_choices(const Job& job);

}  // namespace rehearse
