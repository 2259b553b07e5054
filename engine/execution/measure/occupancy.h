// Measures the length of the union of a rank's intervals, which may come in any order. It stores
// the latest end so far (the frontier) and the latest gaps before it, so that a late interval can
// still fill a gap. When there are more gaps than the capacity, the oldest are dropped; `exact`
// turns false when a later interval may have filled a dropped gap.
//
//   |####|    gap    |######|  gap  |###|             frontier = end of the last interval
//          |----|                                     a late interval fills part of a gap
#pragma once
#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::execution {

class Occupancy {
 public:
  Occupancy(std::size_t places, std::size_t capacity)
      : capacity_(capacity),
        frontier_(places, 0.0),
        forgotten_(places, 0.0),
        count_(places, 0),
        gaps_(places * capacity) {}

  /// Adds one interval for each of the places first, first + 1, ..., first + n - 1. Returns the
  /// newly covered seconds, summed over places.
  double cover(Id first, const double* start, const double* end, std::size_t n);
  /// False when an interval may have filled a dropped gap.
  bool exact() const { return exact_; }

 private:
  struct Gap {
    double begin = 0, end = 0;
  };
  double late(std::size_t place, double start, double end);
  void push(std::size_t place, Gap gap);
  std::size_t capacity_;
  std::vector<double> frontier_, forgotten_;
  std::vector<std::uint32_t> count_;
  std::vector<Gap> gaps_;  // [place][capacity], oldest first
  bool exact_ = true;
};

}  // namespace rehearse::execution
