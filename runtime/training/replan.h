// A change of plan in a run: asks the policy in rank 0, tells every rank, and checks that the new
// plan can follow the old one.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "engine/planner/policy.h"
#include "runtime/checkpoints/manifest.h"
#include "runtime/training/placed.h"

namespace rehearse::runtime {

/// A plan as it is told to other ranks and kept in checkpoints: a plan file without reasons.
std::string plan_text(const plan::Plan& plan, const job::Job& job);
/// Throws InputError that names `where` for a plan of another model or cluster.
plan::Plan plan_from(const std::string& text, const std::string& where, const job::Job& job);

/// The plan with which a run goes on from a checkpoint: the one it was saved under, when that had
/// been placed anew and is a plan for these ranks; otherwise the job's.
PlanRecord resumed_plan(const std::string& checkpoint, const job::Job& job);

/// Every rank calls it at a boundary at which the policy is due. Nothing: the run stays with its
/// plan. `step_times`: rank 0's. `busy`: seconds a step of this rank's passes; negative: no step
/// since it was last asked. Throws InputError on every rank for a plan that cannot follow, and in
/// rank 0 whatever the policy throws.
std::optional<plan::Plan> consult(planner::Policy& policy, const PlacedPlan& current,
                                  planner::Measured measured, double busy, Control& control);

}  // namespace rehearse::runtime
