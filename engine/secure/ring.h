// Real numbers as elements of the ring of 32-bit integers, in which masks vanish without a trace.
// A number is clipped to [-clip, clip], multiplied by its client's weight, and rounded to the
// nearest of `levels` levels between -clip and clip:
//
//   level(x) = round((weight x clip(x) + clip) / step)      step = 2 clip / (levels - 1)
//
// The sum of n levels is exact as long as n (levels - 1) < 2^32. Defaults are those of Flower's
// SecAgg+ (secaggplus_workflow.py: clipping range 8, quantisation range 2^22, modulus 2^32), which
// rounds at random where we round to nearest.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace rehearse::secure {

struct Ring {
  double clip = 8;
  std::uint32_t levels = 1U << 22;
  double step() const { return 2 * clip / (levels - 1); }
};

/// The most levels with which the sum of so many clients fits into the ring.
std::uint32_t most_levels(int clients);
/// The levels of a client's values. `weight`: above 0 and at most 1. Throws BackendError when a
/// value is not finite.
std::vector<std::uint32_t> levels_of(std::span<const float> values, double weight,
                                     const Ring& ring);
/// The weighted mean of `clients` clients from the sum of their levels. `weights`: the sum of their
/// weights.
std::vector<float> mean_of(std::span<const std::uint32_t> sum, int clients, double weights,
                           const Ring& ring);
/// How far a mean of numbers within the clipping range can be from the exact one: each client
/// rounds by half a step at most. The last rounding to fp32 is not part of it.
double error_bound(int clients, double weights, const Ring& ring);

}  // namespace rehearse::secure
