#include "engine/execution/measure/step_ends.h"

#include <algorithm>

#include "engine/base/numbers/vectorise.h"

namespace rehearse::execution {

StepEnds::StepEnds(const link::OrderedProgram& linked, int steps, bool at_period,
                   const FaultReplay* faults)
    : linked_(linked),
      faults_(faults),
      steps_(steps),
      first_start_(static_cast<std::size_t>(steps), FaultReplay::never),
      ends_(static_cast<std::size_t>(steps), 0.0) {
  std::int64_t instances = 0;
  bool numbered = true;
  for (const program::Role& role : linked.program.roles) {
    numbered = numbered && !role.free_running;
    if (!role.free_running)
      instances += static_cast<std::int64_t>(role.ops.size() * role.ranks.size());
  }
  missing_.assign(static_cast<std::size_t>(steps), instances);
  if (at_period && numbered) finder_.emplace(linked);
}

void StepEnds::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                      std::span<const double> ends) {
  const auto at = static_cast<std::size_t>(step);
  if (linked_.program.roles[role].free_running || at >= ends_.size()) return;
  if (finder_) finder_->record(role, op, step, first_place, starts, ends);
  first_start_[at] = std::min(first_start_[at], *std::min_element(starts.begin(), starts.end()));
  ends_[at] = largest(ends.data(), ends.size(), ends_[at]);
  missing_[at] -= static_cast<std::int64_t>(ends.size());
  while (!may_stop_ && done_.size() < missing_.size() && missing_[done_.size()] == 0) {
    done_.push_back(std::max(done_.empty() ? 0.0 : done_.back(), ends_[done_.size()]));
    if (finder_) period_ = finder_->complete(static_cast<int>(done_.size()) - 1, done_.back());
    may_stop_ = done_.size() == missing_.size() || decide();
  }
}

/// Whether the steps that are left follow from those that were run.
bool StepEnds::decide() const {
  if (!period_) return false;
  if (faults_ == nullptr) return true;
  const std::size_t done = done_.size();
  const auto whole = static_cast<std::size_t>(period_->steps) + 1;
  if (done < whole) return false;
  const double since = *std::min_element(first_start_.begin() + static_cast<long>(done - whole),
                                         first_start_.begin() + static_cast<long>(done));
  const double periods = (steps_ - static_cast<double>(done)) / period_->steps + 1;
  return faults_->quiet(since, done_.back() + periods * period_->seconds, steps_ - 1);
}

std::vector<double> StepEnds::ends() const {
  std::vector<double> out = done_;
  if (!may_stop_ || !period_) return out;
  const auto p = static_cast<std::size_t>(period_->steps);
  while (out.size() < ends_.size()) out.push_back(out[out.size() - p] + period_->seconds);
  return out;
}

}  // namespace rehearse::execution
