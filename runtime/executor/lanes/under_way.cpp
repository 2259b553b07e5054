#include "runtime/executor/lanes/under_way.h"

#include <algorithm>

namespace rehearse::runtime {

void UnderWay::add(const Task& task, std::int64_t step) {
  const std::lock_guard guard(lock_);
  given_.push_back({.task = &task, .step = step});
  newest_[task.op] = step;
}

void UnderWay::clear() {
  const std::lock_guard guard(lock_);
  given_.clear();
}

std::optional<Given> UnderWay::oldest(const std::function<bool(const Given&)>& ended) const {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::partition_point(given_, [&](const Given& op) {
    return op.step + ahead_ <= newest_[op.task->op] || ended(op);
  });
  return found == given_.end() ? std::nullopt : std::optional(*found);
}

}  // namespace rehearse::runtime
