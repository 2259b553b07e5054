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

namespace rehearse::planner {

struct Candidates {
  std::vector<plan::Plan> plans = {};          // prepared
  std::vector<plan::Infeasible> refused = {};  // what no candidate may be, by reason
  int bucket_sizes = 1;                        // that were tried where buckets matter
};

Candidates candidates(const job::Job& job, const costs::Profile* profile);

/// The job is of the adaptive method and says that every layer be sparse.
bool must_be_sparse(const job::Job& job);

/// The keys of [method] that the job's file states and that are therefore kept.
std::vector<std::string> stated_choices(const job::Job& job);

}  // namespace rehearse::planner
