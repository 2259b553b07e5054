#include "engine/execution/measure/period.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/numbers/vectorise.h"

namespace rehearse::execution {
namespace {

/// Ends are equal up to this share of a step.
constexpr double tolerance = 1e-9;

/// Whether a lane only issues and waits for nothing but itself. Such a lane may run ahead of all
/// others without bound.
bool only_issues(const link::OrderedProgram& linked, Id r, Id lane) {
  const program::Role& role = linked.program.roles[r];
  for (Id o = 0; o < role.ops.size(); ++o) {
    if (role.ops[o].lane != lane) continue;
    if (!std::holds_alternative<program::Issue>(role.ops[o].work)) return false;
    for (const link::Wait& wait : linked.roles[r].waits.of(o))
      if (role.ops[wait.op].lane != lane) return false;
  }
  return true;
}

}  // namespace

PeriodFinder::PeriodFinder(const link::OrderedProgram& linked, const Fold* fold)
    : ends_(longest + ahead), issued_(2), run_(longest + 1, 0), later_(longest + 1, 0) {
  std::size_t size = 0, issuers = 0;
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    assert(!role.free_running);
    const std::size_t places = fold != nullptr ? fold->representative[r].size() : role.ranks.size();
    std::vector<Op>& ops = ops_.emplace_back(role.ops.size());
    for (Id lane = 0; lane < role.lanes.size(); ++lane) {
      std::vector<Id> own;
      for (Id o = 0; o < role.ops.size(); ++o)
        if (role.ops[o].lane == lane) own.push_back(o);
      if (own.empty()) continue;
      // In the order in which the ops of one step run on a lane in order.
      std::stable_sort(own.begin(), own.end(),
                       [&](Id a, Id b) { return role.ops[a].shift < role.ops[b].shift; });
      const bool issues = only_issues(linked, r, lane);
      std::size_t& first = issues ? issuers : size;
      double sum = 0;
      for (const Id o : own) {
        // The fraction of a multiple of the golden ratio: unlike weights, all between 0.5 and 1.5.
        const double turns = 0.6180339887498949 * o;
        sum += ops[o].weight = 0.5 + turns - std::floor(turns);
        ops[o].first = first;
        ops[o].issued = issues;
        ops[o].may_begin = o == own.front() || role.lanes[lane].order == program::Order::arrival;
      }
      for (const Id o : own) ops[o].weight /= 2 * sum;
      ops[own.back()].weight += 0.5;
      ops[own.back()].closes = issues;
      first += places;
    }
    for (Id o = 0; o < role.ops.size(); ++o) {
      oldest_dependence_ = std::max<int>(oldest_dependence_, role.ops[o].shift);
      // Ops that begin or end their work at a step change all steps from there on.
      if (repetition_ <= longest) repetition_ = std::lcm(repetition_, role.ops[o].when.every);
      changes_until_ = std::max({changes_until_, role.ops[o].when.from, role.ops[o].when.until});
      for (const link::Wait& wait : linked.roles[r].waits.of(o))
        oldest_dependence_ = std::max(oldest_dependence_, wait.lag);
    }
  }
  for (auto& step : ends_) step.assign(size, 0.0);
  for (auto& step : issued_) step.assign(issuers, 0.0);
}

std::vector<double>& PeriodFinder::ends_of(int step) {
  return ends_[static_cast<std::size_t>(step) % ends_.size()];
}

void PeriodFinder::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                          std::span<const double> ends) {
  if (lost_) return;
  const Op& who = ops_[role][op];
  if (who.issued) {
    if (who.closes && step < 2)
      std::copy(ends.begin(), ends.end(),
                issued_[static_cast<std::size_t>(step)].begin() +
                    static_cast<std::ptrdiff_t>(who.first + first_place));
    return;
  }
  const auto at = static_cast<std::size_t>(step);
  if (at >= step_end_.size() + ahead) {
    lost_ = true;
    return;
  }
  add_weighted(ends_of(step).data() + who.first + first_place, ends.data(), who.weight,
               ends.size());
  if (!who.may_begin) return;
  if (first_start_.size() <= at)
    first_start_.resize(at + 1, std::numeric_limits<double>::infinity());
  first_start_[at] = std::min(first_start_[at], *std::min_element(starts.begin(), starts.end()));
}

std::optional<Period> PeriodFinder::complete(int step, double end) {
  assert(static_cast<std::size_t>(step) == step_end_.size());
  if (lost_) return std::nullopt;
  step_end_.push_back(end);
  // Infinite: no op other than an issue has started in this step.
  first_start_.resize(std::max(first_start_.size(), step_end_.size()),
                      std::numeric_limits<double>::infinity());
  std::optional<Period> found;
  for (int p = 1; p <= std::min(longest, step); ++p) {
    const auto k = static_cast<std::size_t>(p);
    const double later = end - step_end_[step_end_.size() - 1 - k];
    const bool same = equal(step, p, later);
    const bool goes_on = std::abs(later - later_[k]) <= tolerance * later / p;
    run_[k] = !same ? 0 : goes_on ? run_[k] + 1 : 1;
    later_[k] = later;
    if (found || p % repetition_ != 0 || !proven(step, p)) continue;
    if (const Period period{p, later}; issuers_keep_up(period)) found = period;
  }
  if (step >= longest) {
    auto& oldest = ends_of(step - longest);
    std::fill(oldest.begin(), oldest.end(), 0.0);
  }
  return found;
}

/// Whether all lanes end `later` seconds after they did `period` steps before.
bool PeriodFinder::equal(int step, int period, double later) const {
  const auto& now = ends_[static_cast<std::size_t>(step) % ends_.size()];
  const auto& then = ends_[static_cast<std::size_t>(step - period) % ends_.size()];
  const double most = tolerance * later / period;
  for (std::size_t i = 0; i < now.size(); ++i)
    if (std::abs(now[i] - then[i] - later) > most) return false;
  return true;
}

/// Whether the equal steps up to `step` suffice (see the top of the header). Steps up to some step
/// `last` have ended when a step after `step` begins, and what is under way then began after all
/// steps before the equal ones had ended.
bool PeriodFinder::proven(int step, int period) const {
  const int run = run_[static_cast<std::size_t>(period)];
  if (run == 0 || step - period - run + 1 < changes_until_) return false;
  if (step - period + 1 < oldest_dependence_) return false;
  const auto end = [&](int s) { return step_end_[static_cast<std::size_t>(s)]; };
  // When the first op of the steps from `first` to `step` begins. Later steps begin after it.
  const auto begin = [&](int first) {
    return *std::min_element(first_start_.begin() + first, first_start_.begin() + step + 1);
  };
  const double slack = tolerance * later_[static_cast<std::size_t>(period)] / period;
  const int equal = step - run + 1;  // the first of the equal steps
  for (int last = equal; last <= step; ++last)
    if (begin(step - period + 1) + slack >= end(last - period) &&
        (last == step || begin(last + 1) + slack >= end(equal - 1)))
      return true;
  return false;
}

/// Issuing lanes take the same time for every step, from the first. The others wait for them, so
/// such a lane has no influence any more when others, which move by `period`, are no faster.
bool PeriodFinder::issuers_keep_up(const Period& period) const {
  const double most = period.seconds / period.steps * (1 + tolerance);
  for (std::size_t i = 0; i < issued_[0].size(); ++i)
    if (issued_[1][i] - issued_[0][i] > most) return false;
  return true;
}

}  // namespace rehearse::execution
