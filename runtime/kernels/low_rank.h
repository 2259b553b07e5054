// Gradients as factors of a low rank (PowerSGD: Vogels et al., NeurIPS 2019, algorithm 1), and the
// moments that 1-bit Adam sends. A matrix has `rows` rows, one after the other. Its factors, left
// (rank x rows) and right (rank x columns), have their columns one after the other. Results are the
// same bits on every processor.
#pragma once
#include <cstdint>

#include "engine/base/random.h"
#include "engine/program/low_rank.h"

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

}  // namespace rehearse::runtime
