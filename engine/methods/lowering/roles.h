// Which ranks share a role. Each pipeline stage has one role for each kind of replica.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class GradientSync;

/// The ranks of one role. Replicas (places along dp, cp and tp) are of one kind when they take
/// equally many samples and, on every stage, have the same part in two-level exchanges and the same
/// place in rings of cp ranks. So the i-th rank of
/// a kind meets the i-th rank of the same kind on the neighbouring stage.
struct StageRole {
  int stage = 0, kind = 0, kinds = 1;
  int samples = 0;  // of a micro-batch
  int context = 0;  // place along cp, where blocks of keys and values travel around a ring
  /// For two-level exchanges. led_by: the kind of this role's leaders. leaders: how many leaders
  /// its data-parallel group has; 0 without two-level exchanges.
  int leader_kind = 0, leaders = 0;
  /// leader: this role's ranks are leaders. alone: each of them leads only itself.
  bool leader = false, alone = false;
  std::vector<Id> ranks = {};

  std::string name(const plan::Plan& plan) const;
};

/// A program with the plan's mesh and nothing else.
program::Program make_mesh(const plan::Plan& plan);
/// The largest groups of neighbouring data-parallel ranks that are on one node each; 0, all ranks,
/// where nodes are not known or a node has one of them.
int group_in_nodes(const plan::Plan& plan);
/// In ascending order, without servers.
std::vector<Id> ranks_of_stage(const program::Program& program, int stage);
/// In the order of the program's roles: stage by stage, and in each stage kind by kind.
std::vector<StageRole> stage_roles(const program::Program& program, const plan::Plan& plan,
                                   const GradientSync& sync);

}  // namespace rehearse::methods
