#include "engine/execution/measure/occupancy.h"

#include <algorithm>
#include <utility>

namespace rehearse::execution {

double Occupancy::cover(Id first, const double* start, const double* end, std::size_t n) {
  double covered = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t p = first + i;
    const double s = start[i], e = end[i], f = frontier_[p];
    if (s >= f) {
      if (s > f) push(p, {f, s});
      frontier_[p] = e;
      covered += e - s;
    } else {
      covered += late(p, s, e);
    }
  }
  return covered;
}

void Occupancy::push(std::size_t place, Gap gap) {
  Gap* gaps = gaps_.data() + place * capacity_;
  std::uint32_t& n = count_[place];
  if (n == capacity_) {  // full: drop the older half
    const std::uint32_t half = (n + 1) / 2;
    forgotten_[place] = gaps[half - 1].end;
    std::copy(gaps + half, gaps + n, gaps);
    n -= half;
  }
  gaps[n++] = gap;
}

double Occupancy::late(std::size_t place, double start, double end) {
  double covered = 0;
  if (end > frontier_[place]) {
    covered += end - frontier_[place];
    end = std::exchange(frontier_[place], end);
  }
  if (start < forgotten_[place]) exact_ = false;
  Gap* gaps = gaps_.data() + place * capacity_;
  std::uint32_t& n = count_[place];
  for (std::uint32_t k = n; k-- > 0 && gaps[k].end > start;) {
    const Gap gap = gaps[k];
    const double begin = std::max(start, gap.begin), stop = std::min(end, gap.end);
    if (begin >= stop) continue;
    covered += stop - begin;
    const bool left = gap.begin < begin, right = stop < gap.end;
    if (left && right) {
      if (n == capacity_) {  // no room to split the gap: drop its older part
        forgotten_[place] = std::max(forgotten_[place], begin);
        gaps[k].begin = stop;
      } else {
        std::copy_backward(gaps + k + 1, gaps + n, gaps + n + 1);
        gaps[k] = {gap.begin, begin}, gaps[k + 1] = {stop, gap.end};
        ++n;
      }
    } else if (left) {
      gaps[k].end = begin;
    } else if (right) {
      gaps[k].begin = stop;
    } else {
      std::copy(gaps + k + 1, gaps + n, gaps + k);
      --n;
    }
  }
  return covered;
}

}  // namespace rehearse::execution
