#include "engine/goodput/theory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace rehearse::goodput {

Seconds young(Seconds write, Seconds between, double at_risk) {
  return Seconds(std::sqrt(2 * write.value * between.value / at_risk));
}

Seconds daly(Seconds write, Seconds between, double at_risk) {
  return std::max(Seconds(0), young(write, between, at_risk) - write);
}

double expected_ratio(Seconds interval, Seconds write, Seconds between, Seconds restart,
                      double at_risk) {
  const double lost = (restart + at_risk * interval / 2) / between;
  return std::max(0.0, (1 - lost) / (1 + write / interval));
}

Seconds restart_time(int ranks) {
  constexpr std::array<std::pair<double, double>, 5> known{
      {{1, 60}, {16384, 200}, {22000, 300}, {64000, 600}, {98000, 900}}};
  std::size_t upper = 1;
  while (upper + 1 < known.size() && ranks > known[upper].first) ++upper;
  const auto [x0, y0] = known[upper - 1];
  const auto [x1, y1] = known[upper];
  return Seconds(y0 + (y1 - y0) * (ranks - x0) / (x1 - x0));
}

}  // namespace rehearse::goodput
