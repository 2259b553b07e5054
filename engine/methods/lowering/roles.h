// Which ranks are alike and share a role: a role for each pipeline stage, and of each stage one for
// each kind of replica.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class GradientSync;

/// The ranks that one role stands for. Replicas (places along dp and tp) are of one kind when they
/// take equally many samples and play the same part in exchanges on every stage, so that the i-th
/// rank of a kind meets the i-th rank of that kind on the neighbouring stage.
struct StageRole {
  int stage = 0, kind = 0, kinds = 1;
  int samples = 0;  // of a micro-batch
  /// In syncs in which one rank of a node exchanges for the others: the kind of that rank, whether
  /// it is this role itself, alone on its node, and how many such ranks exchange.
  int led_by = 0, leaders = 0;
  bool leader = false, alone = false;
  std::vector<Id> ranks = {};

  std::string name(const plan::Plan& plan) const;
};

/// A program with the plan's mesh and nothing else.
program::Program make_mesh(const plan::Plan& plan);
/// The axis of that name; 0 when it has but one place.
program::Axes axis_named(const program::Program& program, const std::string& name);
std::vector<Id> ranks_of_stage(const program::Program& program, int stage);
/// In the order of roles: stage by stage, the kinds of replicas of each.
std::vector<StageRole> stage_roles(const program::Program& program, const plan::Plan& plan,
                                   const GradientSync& sync);

}  // namespace rehearse::methods
