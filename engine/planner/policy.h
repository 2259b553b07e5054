// Policies: when a run goes on under another plan, and under which. A policy is asked at step
// boundaries at which nothing is under way; the run then migrates (engine/migration/migration.h)
// and goes on. Two of them: one re-placement after warm-up (Sun 2026, section 3.1: "re-evaluates
// placement only once, after warm-up"), and samples per rank that follow measured speed (dynamic
// load balancing). Whatever a policy does, a step consumes the same samples and the mathematics
// stay the same, but for what a sparse plan leaves for later.
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

/// What a run keeps whatever its plan: the first such thing in which two plans differ, if any.
struct Difference {
  std::string what = {}, first = {}, next = {};  // "world size", "4", "8"
};
std::optional<Difference> difference(const plan::Plan& first, const plan::Plan& next);

/// What a run has shown since its policy was last asked.
struct Measured {
  std::int64_t step = 0;                // the next one
  int placements = 0;                   // changes of plan so far
  std::vector<double> step_times = {};  // seconds
  /// By rank: seconds a step of forward and backward passes; empty: no step since.
  std::vector<double> busy = {};
  std::vector<tensors::LayerVariance> variances =
      {};  // of gradients; empty: the plan observes none
};

class Policy {
 public:
  virtual ~Policy() = default;
  /// The first boundary, at `step` or later, at which the policy is to be asked; nothing: never
  /// again. Every rank asks and must hear the same, so the answer depends on the arguments alone.
  /// `placements`: how many changes of plan the run has seen.
  virtual std::optional<std::int64_t> next(std::int64_t step, int placements) const = 0;
  /// Asked in rank 0 only, at boundaries that `next` named. The plan to go on with, of the same
  /// ranks, batch and optimizer; nothing: the one there is.
  virtual std::optional<plan::Plan> observe(const Measured& measured,
                                            const plan::Plan& current) = 0;
};

/// Exactly one re-placement, before step `warm_up`.
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

/// Samples per data-parallel rank follow the speed that its slowest member shows. Every `every`
/// steps; only when the busiest replica's step would become shorter by more than `bound` of itself,
/// since a migration costs more than a little imbalance.
class BalanceLoad final : public Policy {
 public:
  BalanceLoad(std::int64_t every, double bound);
  std::optional<std::int64_t> next(std::int64_t step, int placements) const override;
  std::optional<plan::Plan> observe(const Measured& measured, const plan::Plan& current) override;

 private:
  std::int64_t every_;
  double bound_;
};

/// Several policies of one run: each is asked when it is due, in this order; the first plan is
/// taken.
class Policies final : public Policy {
 public:
  explicit Policies(std::vector<std::shared_ptr<Policy>> all);
  std::optional<std::int64_t> next(std::int64_t step, int placements) const override;
  std::optional<plan::Plan> observe(const Measured& measured, const plan::Plan& current) override;

 private:
  std::vector<std::shared_ptr<Policy>> all_;
};

}  // namespace rehearse::planner
