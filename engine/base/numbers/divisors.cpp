#include "engine/base/numbers/divisors.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace rehearse {

std::vector<int> divisors(int whole) {
  std::vector<int> small, large;
  for (std::int64_t d = 1; d * d <= whole; ++d) {
    if (whole % d != 0) continue;
    small.push_back(static_cast<int>(d));
    if (d * d != whole) large.push_back(static_cast<int>(whole / d));
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

int nearest_divisor(int whole, int wanted) {
  const std::vector<int> all = divisors(whole);
  return *std::min_element(all.begin(), all.end(), [&](int a, int b) {
    return std::abs(std::int64_t{a} - wanted) < std::abs(std::int64_t{b} - wanted);
  });
}

}  // namespace rehearse
