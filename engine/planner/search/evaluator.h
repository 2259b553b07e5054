// Scores a candidate plan by its program: compiles the plan, orders its ops (link::order), prices
// them and dry-runs the program. Keeps the prices of collectives, so that later candidates with the
// same groups and sizes are faster to score.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/profile.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/planner/memory/needs.h"

namespace rehearse::planner {

/// The memory need of the fullest device. `share`: need / (capacity - reserve).
struct MemoryNeed {
  double share = 0;
  std::int64_t bytes = 0, capacity = 0, reserve = 0;
  std::string kind = {};  // of the device
  bool fits() const { return share <= 1; }
};
/// Replaces `most` if `bytes` on a device of this kind are a larger share.
void add_need(MemoryNeed& most, double bytes, const cluster::DeviceKind& kind);

/// Seconds of a stage in a step: the terms that Sun 2026, eq. 6, balances.
struct StageBalance {
  double compute = 0, communication = 0, bubble = 0;
};

class Evaluator {
 public:
  /// `slow`: by link, `pace`: by rank, as in costs::Costs. `model`, `cluster` and `profile` must
  /// outlive this object.
  Evaluator(const model::ModelSpec& model, const cluster::Cluster& cluster,
            const costs::Profile* profile, std::span<const double> slow = {},
            std::span<const double> pace = {});

  /// Seconds of a step after the first ones. `plan` must be prepared (methods::prepare).
  double seconds(const plan::Plan& plan);
  /// Lower bound of the memory of the plan that `seconds` scored last: each value lives from its
  /// first to its last use, in the order of the role's ops. The linker never plans less.
  MemoryNeed least_memory() const { return least_; }
  std::size_t ops() const { return ops_; }  // of the plan scored last, over all roles

  /// Compiles and links the plan in full, with race check and memory plan.
  link::LinkedProgram link_fully(const plan::Plan& plan) const;
  /// The need of the fullest device by the linker's memory plan.
  MemoryNeed memory(const link::LinkedProgram& linked, const plan::Plan& plan) const;
  /// By pipeline stage: means over its ranks (eq. 6).
  std::vector<StageBalance> balance(const plan::Plan& plan);
  const costs::Profile* profile() const { return profile_; }

 private:
  link::OrderedProgram ordered(const plan::Plan& plan);
  costs::Costs costs_of(const link::OrderedProgram& linked, const plan::Plan& plan);

  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  const costs::Profile* profile_;
  std::vector<double> slow_, pace_;
  costs::CollectivePrices prices_;
  MemoryNeed least_ = {};
  std::size_t ops_ = 0;
};

/// Lower bound of the bytes that a rank of a role holds, without workspaces.
std::int64_t least_bytes(const program::Role& role);
/// The device with the largest share; ranks on the same device add up.
MemoryNeed fullest(const std::vector<std::int64_t>& bytes_of_role,
                   const link::OrderedProgram& linked, const cluster::Cluster& cluster,
                   std::span<const Id> rank_to_device);

}  // namespace rehearse::planner
