// Gradients as factors of a low rank (PowerSGD: Vogels et al., NeurIPS 2019, algorithm 1), and the
// moments that 1-bit Adam sends. A matrix has `rows` rows, one after the other. Its factors, left
// (rank x rows) and right (rank x columns), have their columns one after the other. Results are the
// same bits on every processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "engine/base/numbers/random.h"
#include "engine/program/low_rank.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// left = matrix x right.
void project(const program::Factors& size, const float* matrix, const float* right, float* left);

/// Makes the columns of `left` orthonormal, in their order (Gram-Schmidt, each column twice). A
/// column that depends on those before it, is 0 or is not finite becomes a direction of its own,
/// the same on every rank: otherwise a warm start would lose this column for good.
void orthonormalise(const program::Factors& size, float* left);

/// right = transpose of matrix x left.
void project_back(const program::Factors& size, const float* matrix, const float* left,
                  float* right);

/// target = left x transpose of right. `residual`, which may be null, loses scale x target; entries
/// of it that are not finite become 0.
void expand(const program::Factors& size, const float* left, const float* right, float scale,
            float* target, float* residual);

/// residual += source, entry by entry.
void add_to_residual(const float* source, float* residual, std::int64_t elements);

/// Entries [first, first + elements) of the numbers with this key: a standard normal distribution.
void draw(RandomKey key, std::int64_t first, float* target, std::int64_t elements);

/// target = (1 - beta1) x target + beta1 x scale x moment.
void blend_momentum(double beta1, double scale, const float* moment, float* target,
                    std::int64_t elements);

// The formulas of single numbers, which kernels of a GPU share (elements.h).

/// What a residual keeps when scale x value is sent.
REHEARSE_BOTH float without(float residual, float scale, float value) {
  const float left = residual - scale * value;
  return std::fabs(left) <= std::numeric_limits<float>::max() ? left : 0.0F;
}

/// Whether a column depends on those before it: too little of its length is left without them.
REHEARSE_BOTH bool depends(double length, double left) {
  constexpr double least_part = 1e-6;
  return !(left > least_part * length) || !std::isfinite(length);
}
/// Of the direction that column `k` gets then.
constexpr RandomKey replacement_key(int k) {
  return random_key(0, Draw::factor, 0, static_cast<std::uint64_t>(k));
}

/// A draw from a standard normal distribution (Box and Muller 1958). log and cos are a library's,
/// so a GPU's may differ in the last bit.
REHEARSE_BOTH float normal_number(RandomKey key, std::int64_t number) {
  const auto at = static_cast<std::uint32_t>(2 * number);
  const double radius = std::sqrt(-2 * std::log(random_uniform(key, at)));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * random_uniform(key, at + 1)));
}

}  // namespace rehearse::runtime
