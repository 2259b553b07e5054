// In which steps an op works (program::When), as sets: whether a use of memory is covered by the
// writes before it, some of which work in the first steps only and others from there on.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::link {

/// Whether an op with `a` works in every step in which one with `b` does.
constexpr bool works_whenever(const program::When& a, const program::When& b) {
  return b.every % a.every == 0 && a.from <= b.from &&
         (a.until == 0 || (b.until != 0 && b.until <= a.until));
}

/// Steps as intervals, without regard to `every`.
class StepSet {
 public:
  explicit StepSet(const program::When& when) : left_{interval_of(when)} {}

  /// Removes the steps from `from` on and before `until`. Returns whether the set had any of them.
  bool remove(const program::When& when) {
    const Interval gone = interval_of(when);
    std::vector<Interval> left;
    bool any = false;
    for (const Interval& one : left_) {
      any = any || std::max(one.begin, gone.begin) < std::min(one.end, gone.end);
      for (const Interval part : {Interval{one.begin, std::min(one.end, gone.begin)},
                                  Interval{std::max(one.begin, gone.end), one.end}})
        if (part.begin < part.end) left.push_back(part);
    }
    if (any) left_ = std::move(left);
    return any;
  }
  bool empty() const { return left_.empty(); }

 private:
  struct Interval {
    int begin = 0, end = 0;
  };
  static Interval interval_of(const program::When& when) {
    return {when.from, when.until == 0 ? std::numeric_limits<int>::max() : when.until};
  }

  std::vector<Interval> left_;
};

}  // namespace rehearse::link
