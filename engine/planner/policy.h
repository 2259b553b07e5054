// Policies: decide when a run changes its plan, and to which plan. The run asks its policy at step
// boundaries, when no transfer or op is in flight. To change its plan, the run migrates its state
// (engine/migration/migration.h).
//
// There are two policies: one re-placement after warm-up (Sun 2026, section 3.1: "re-evaluates
// placement only once, after warm-up"), and dynamic load balancing, which gives each replica as
// many samples as its measured speed allows. Neither changes the samples of a step, nor the
// results, except that a sparse plan sends part of a gradient in later steps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// A property that a run cannot change, and its values in two plans.
struct Difference {
  std::string what = {}, first = {}, next = {};  // "world size", "4", "8"
};
/// The first difference in world size, global batch, optimizer or clipping; none: the run can
/// change from one plan to the other.
std::optional<Difference> difference(const plan::Plan& first, const plan::Plan& next);

/// Measurements of a run since its policy was asked last.
struct Measured {
  std::int64_t step = 0;                // the next step
  int placements = 0;                   // number of plan changes so far
  std::vector<double> step_times = {};  // seconds, by step
  /// By rank: seconds of forward and backward passes per step; empty: no step was measured.
  std::vector<double> busy = {};
  /// Gradient variances by layer; empty: the plan does not observe gradients.
  std::vector<tensors::LayerVariance> variances = {};
};

class Policy {
 public:
  virtual ~Policy() = default;
  /// The first step boundary, at `step` or later, at which to call `observe`; none: never again.
  /// Every rank calls this and must get the same answer, so it depends only on the arguments.
  /// `placements`: number of plan changes so far.
  virtual std::optional<std::int64_t> next(std::int64_t step, int placements) const = 0;
  /// The plan for the next steps, with the same world size, batch and optimizer; none: keep the
  /// current plan. Only rank 0 calls this, at the boundaries that `next` returned.
  virtual std::optional<plan::Plan> observe(const Measured& measured,
                                            const plan::Plan& current) = 0;
};

/// One change of plan, before step `warm_up`, to the plan that `decide` returns.
class ReplaceOnce final : public Policy {
 public:
  using Decide = std::function<plan::Plan(const Measured&, const plan::Plan& current)>;
  ReplaceOnce(std::int64_t warm_up, Decide decide);
  std::optional<std::int64_t> next(std::int64_t step, int placements) const override;
  std::optional<plan::Plan> observe(const Measured& measured, const plan::Plan& current) override;

 private:
  std::int64_t warm_up_;
  Decide decide_;
};

/// Load balancing: every `every` steps, gives each replica samples in proportion to the measured
/// speed of its slowest rank. Changes the plan only if the busiest replica's step becomes shorter
/// by more than the fraction `bound`, because a migration costs more than a small imbalance.
class BalanceLoad final : public Policy {
 public:
  BalanceLoad(std::int64_t every, double bound);
  std::optional<std::int64_t> next(std::int64_t step, int placements) const override;
  std::optional<plan::Plan> observe(const Measured& measured, const plan::Plan& current) override;

 private:
  std::int64_t every_;
  double bound_;
};

/// Several policies of one run. At each boundary asks those that are due, in this order, and takes
/// the first plan that one of them returns.
class Policies final : public Policy {
 public:
  explicit Policies(std::vector<std::shared_ptr<Policy>> all);
  std::optional<std::int64_t> next(std::int64_t step, int placements) const override;
  std::optional<plan::Plan> observe(const Measured& measured, const plan::Plan& current) override;

 private:
  std::vector<std::shared_ptr<Policy>> all_;
};

}  // namespace rehearse::planner
