// See numbers.h.
#include "engine/numbers.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

namespace rehearse {

std::string fixed(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text.find_first_not_of("-0.") == std::string::npos && text.front() == '-') text.erase(0, 1);
  return text;
}

std::string percent(double fraction, int decimals) { return fixed(100 * fraction, decimals) + "%"; }

int nearest_divisor(int whole, int wanted) {
  const auto rank = [&](int d) {
    return std::pair(std::abs(std::int64_t{d} - std::int64_t{wanted}), d);
  };
  int best = 1;
  for (int d = 1; std::int64_t{d} * d <= whole; ++d)
    for (const int one : {d, whole / d})
      if (whole % d == 0 && rank(one) < rank(best)) best = one;
  return best;
}

}  // namespace rehearse
