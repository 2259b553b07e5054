#include "engine/secure/ring.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"

namespace rehearse::secure {

std::uint32_t most_levels(int clients) {
  return static_cast<std::uint32_t>(0xffffffffU / static_cast<std::uint32_t>(clients)) + 1;
}

std::vector<std::uint32_t> levels_of(std::span<const float> values, double weight,
                                     const Ring& ring) {
  std::vector<std::uint32_t> out;
  out.reserve(values.size());
  for (const float value : values) {
    if (!std::isfinite(value))
      throw BackendError("a weight that is not finite has no level: its mean would be wrong");
    const double x = weight * std::clamp(static_cast<double>(value), -ring.clip, ring.clip);
    out.push_back(static_cast<std::uint32_t>(std::llround((x + ring.clip) / ring.step())));
  }
  return out;
}

std::vector<float> mean_of(std::span<const std::uint32_t> sum, int clients, double weights,
                           const Ring& ring) {
  std::vector<float> out;
  out.reserve(sum.size());
  for (const std::uint32_t level : sum)
    out.push_back(static_cast<float>((level * ring.step() - clients * ring.clip) / weights));
  return out;
}

double error_bound(int clients, double weights, const Ring& ring) {
  return clients * ring.step() / 2 / weights;
}

}  // namespace rehearse::secure
