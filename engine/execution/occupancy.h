// How much of the time covered by a rank's intervals is covered at all, when the intervals come in
// any order: remembers where the last one ends (the frontier) and the latest gaps below it, so that
// an interval that comes late still fills them. Gaps beyond the capacity are given up, oldest
// first, and it says so when a late interval reaches below one.
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

  /// Adds intervals of places first, first + 1, ...; the newly covered seconds are summed.
  double cover(Id first, const double* start, const double* end, std::size_t n);
  /// False when an interval may have filled a gap that had been given up.
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
