// Scores a candidate plan by the program it compiles to: lowered, linked as a draft, priced, dry
// run. What one candidate's costs teach about groups and sizes is kept for the next.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/collective_prices.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/planner/fit.h"

namespace rehearse::planner {

/// The fullest device: its need as a part of what plans may use of its memory.
struct MemoryNeed {
  double share = 0;
  std::int64_t bytes = 0, capacity = 0, reserve = 0;
  std::string kind = {};
  bool fits() const { return share <= 1; }
};
/// If `bytes` on a device of this kind are a larger part than `most`, they take its place.
void add_need(MemoryNeed& most, double bytes, const cluster::DeviceKind& kind);

/// How a stage spends a step, seconds: what eq. 6 of Sun 2026 asks to balance.
struct StageBalance {
  double compute = 0, communication = 0, bubble = 0;
};

class Evaluator {
 public:
  /// `slow` by link and `pace` by rank as in Costs.
  Evaluator(const model::ModelSpec& model, const cluster::Cluster& cluster,
            const costs::Profile* profile, std::span<const double> slow = {},
            std::span<const double> pace = {});

  /// Seconds of a steady step. `plan` is prepared (see strategy.h).
  double seconds(const plan::Plan& plan);
  /// What the last scored plan holds at least: values live from their first to their last use in
  /// the order in which a host issues the ops, which is never more than the linker plans.
  MemoryNeed least_memory() const { return least_; }
  std::size_t ops() const { return ops_; }  // in all roles of the last scored plan

  /// Linked in full, race check and memory plan included.
  link::LinkedProgram link_fully(const plan::Plan& plan) const;
  MemoryNeed memory(const link::LinkedProgram& linked, const plan::Plan& plan) const;
  /// By pipeline stage, means over its ranks (eq. 6).
  std::vector<StageBalance> balance(const plan::Plan& plan);
  const costs::Profile* profile() const { return profile_; }

 private:
  link::LinkedProgram draft_of(const plan::Plan& plan);
  costs::Costs costs_of(const link::LinkedProgram& linked, const plan::Plan& plan);

  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  const costs::Profile* profile_;
  std::vector<double> slow_, pace_;
  costs::CollectivePrices prices_;
  MemoryNeed least_ = {};
  std::size_t ops_ = 0;
};

/// Bytes that a role holds at least, workspaces left out.
std::int64_t least_bytes(const program::Role& role);
MemoryNeed fullest(const std::vector<std::int64_t>& bytes_of_role,
                   const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                   std::span<const Id> rank_to_device);

}  // namespace rehearse::planner
