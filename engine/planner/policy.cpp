#include "engine/planner/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/names.h"
#include "engine/planner/placement/shares.h"

namespace rehearse::planner {

std::optional<Difference> difference(const plan::Plan& first, const plan::Plan& next) {
  const auto differ = [](const char* what, const auto& a, const auto& b) {
    return Difference{what, fmt::format("{}", a), fmt::format("{}", b)};
  };
  if (first.mesh.world_size() != next.mesh.world_size())
    return differ("world size", first.mesh.world_size(), next.mesh.world_size());
  if (first.schedule.global_batch != next.schedule.global_batch)
    return differ("global batch", first.schedule.global_batch, next.schedule.global_batch);
  if (first.optimizer != next.optimizer)
    return differ("optimizer", name_of(first.optimizer), name_of(next.optimizer));
  if (first.clip != next.clip) return differ("clipping", first.clip, next.clip);
  return std::nullopt;
}

ReplaceOnce::ReplaceOnce(std::int64_t warm_up, Decide decide)
    : warm_up_(warm_up), decide_(std::move(decide)) {}

std::optional<std::int64_t> ReplaceOnce::next(std::int64_t step, int placements) const {
  if (placements > 0) return std::nullopt;
  return std::max(step, warm_up_);
}

std::optional<plan::Plan> ReplaceOnce::observe(const Measured& measured,
                                               const plan::Plan& current) {
  return decide_(measured, current);
}

Policies::Policies(std::vector<std::shared_ptr<Policy>> all) : all_(std::move(all)) {}

std::optional<std::int64_t> Policies::next(std::int64_t step, int placements) const {
  std::optional<std::int64_t> first;
  for (const auto& policy : all_)
    if (const auto due = policy->next(step, placements))
      first = std::min(first.value_or(*due), *due);
  return first;
}

std::optional<plan::Plan> Policies::observe(const Measured& measured, const plan::Plan& current) {
  for (const auto& policy : all_)
    if (policy->next(measured.step, measured.placements) == measured.step)
      if (std::optional<plan::Plan> plan = policy->observe(measured, current)) return plan;
  return std::nullopt;
}

BalanceLoad::BalanceLoad(std::int64_t every, double bound) : every_(every), bound_(bound) {}

std::optional<std::int64_t> BalanceLoad::next(std::int64_t step, int) const {
  return std::max<std::int64_t>(every_, (step + every_ - 1) / every_ * every_);
}

std::optional<plan::Plan> BalanceLoad::observe(const Measured& measured,
                                               const plan::Plan& current) {
  if (measured.busy.empty() || current.mesh.dp == 1) return std::nullopt;
  Balance found = balance(current, measured.busy);
  if (found.slowest_balanced_s >= (1 - bound_) * found.slowest_now_s) return std::nullopt;
  plan::Plan plan = current;
  plan.schedule.shares = unless_equal(std::move(found.shares));
  return plan;
}

}  // namespace rehearse::planner
