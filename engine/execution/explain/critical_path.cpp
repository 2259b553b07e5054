#include "engine/execution/explain/critical_path.h"

#include <algorithm>

namespace rehearse::execution {
namespace {

/// The op that ended last in a step or an earlier one.
Instance last_until(const History& history, int step) {
  Instance out = history.last_of(step);
  for (int s = step; s-- > 0;)
    if (history.end(history.last_of(s)) > history.end(out)) out = history.last_of(s);
  return out;
}

}  // namespace

double end_of_step(const History& history, int step) {
  return step < 0 ? 0 : history.end(last_until(history, step));
}

std::vector<PathOp> critical_path(History& history, int last, double from) {
  std::vector<PathOp> path;
  std::vector<Instance> causes;
  Instance at = last_until(history, last);
  double until = history.end(at);
  while (until > from) {
    const double start = history.start(at);
    path.push_back({at, std::max(start, from), until});
    until = start;
    if (until <= from) break;
    causes.clear();
    history.causes(at, causes);
    const auto cause = std::max_element(
        causes.begin(), causes.end(),
        [&](const Instance& a, const Instance& b) { return history.end(a) < history.end(b); });
    const double ended = cause == causes.end() ? 0 : std::min(history.end(*cause), until);
    if (ended < until) {
      path.push_back({{at.role, none, at.step, at.place}, std::max(ended, from), until});
      until = ended;
    }
    if (cause == causes.end()) break;
    at = *cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace rehearse::execution
