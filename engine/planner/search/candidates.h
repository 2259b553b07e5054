// Enumerates the plans that a search chooses from: every mesh of the world that the model allows,
// and for each mesh the orders of its axes, micro-batches, schedules, ZeRO levels, recomputation,
// bucket sizes and shares. Values that the job's file states are not varied. The order is fixed,
// with the plainer plan first, so that it wins a tie.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/plan/plan.h"
#include "engine/planner/planner.h"

namespace rehearse::planner {

struct Candidates {
  std::vector<plan::Plan> plans = {};          // prepared
  std::vector<plan::Infeasible> refused = {};  // combinations that are no candidates, by reason
  int bucket_sizes = 1;  // bucket sizes that were tried for plans with buckets
};

/// `job` as read_job leaves it with `to_plan`. `profile`: null for none. `wide`: also ZeRO 2 and 3
/// in pipelines, which are faster in few cases.
Candidates candidates(const job::Job& job, const costs::Profile* profile, bool wide = true);
/// The candidate with its optimizer on the host, and with its activations there, prepared. Both
/// take longer, so they are worth trying where the candidate does not fit into memory; of
/// activations only what recomputation keeps. Leaves out what the job states, what the method does
/// not allow, and what hosts of unknown speed cannot do. A candidate that has its activations there
/// already gets the optimizer too, not the other way round.
std::vector<plan::Plan> on_host(const job::Job& job, const plan::Plan& candidate);

/// Whether the job has a planned method and states a sparse or two-level reduction for every layer.
bool must_be_sparse(const job::Job& job);
/// Whether the job allows the candidate's sums: with several replicas, sparse ones if it must be
/// sparse. Other candidates are dry-run too, as bases of sparse ones and for the warm-up.
bool allows_sums(const job::Job& job, const plan::Plan& candidate);

/// The keys of [method] that the job's file states and the search therefore keeps.
std::vector<std::string> stated_choices(const job::Job& job);

}  // namespace rehearse::planner
