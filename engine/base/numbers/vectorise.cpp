#include "engine/base/numbers/vectorise.h"

#include <algorithm>

namespace rehearse {

REHEARSE_CLONES double largest(const double* values, std::size_t n, double most) {
  double lanes[8] = {most, most, most, most, most, most, most, most};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::size_t j = 0; j < 8; ++j)
      lanes[j] = lanes[j] < values[i + j] ? values[i + j] : lanes[j];
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], values[i]);
  for (double lane : lanes) most = std::max(most, lane);
  return most;
}

REHEARSE_CLONES void max_of(double* out, const double* a, const double* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
}
REHEARSE_CLONES void raise_to(std::uint32_t* into, const std::uint32_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = into[i] < to[i] ? to[i] : into[i];
}
REHEARSE_CLONES void add_to_all(double* out, const double* start, double cost, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost;
}
REHEARSE_CLONES void add_scaled(double* out, const double* start, double cost, const double* factor,
                                std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost * factor[i];
}
REHEARSE_CLONES void add_product(double* out, const double* start, const double* cost,
                                 const double* factor, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost[i] * factor[i];
}
REHEARSE_CLONES void add_weighted(double* sum, const double* values, double weight, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] += weight * values[i];
}

}  // namespace rehearse
