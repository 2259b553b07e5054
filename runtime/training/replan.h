// Changes of plan during a run. Rank 0 asks the policy, checks that the run can continue under the
// new plan, and sends the plan to all ranks.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/policy.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/training/placed.h"
#include "runtime/training/slow_ranks.h"

namespace rehearse::runtime {

/// Parses a plan from another rank or a checkpoint: a plan file without reasons (job::to_toml).
/// Throws InputError, which names `where`, for a plan of another model or cluster.
plan::Plan plan_from(const std::string& text, const std::string& where, const job::Job& job);

/// The plan with which a run resumes from a checkpoint: the plan that it was saved under, if the
/// run had changed its plan by then and the world size and global batch are the job's. Otherwise
/// the record is empty (0 placements), and the run resumes with the job's plan.
PlanRecord resumed_plan(const std::string& checkpoint, const job::Job& job);

/// Samples of a micro-batch by replica that follow the speeds of the window in which a rank was
/// found slow. Nothing: they would not shorten steps by adaptive.balance_bound.
std::optional<std::vector<int>> balanced_shares(const SlowRank& slow, const PlacedPlan& current);

/// Asks the policy. Every rank calls it, before a step at which the policy is due. Returns the new
/// plan; nothing: the run keeps its plan. `measured`: rank 0's is used; its `busy` is filled in
/// here. `busy`: seconds per step that this rank's compute ops took; negative: no step since the
/// policy was last asked. Rank 0 throws InputError for a plan that the run cannot continue with,
/// and whatever the policy throws; the control plane then ends the other ranks with BackendError.
std::optional<plan::Plan> consult(planner::Policy& policy, const PlacedPlan& current,
                                  planner::Measured measured, double busy, Control& control);

}  // namespace rehearse::runtime
