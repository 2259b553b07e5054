#include "runtime/kernels/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/kernels/vectorised.h"

namespace rehearse::runtime {
namespace {

/// In fixed lanes, so that every version of the loop adds in the same order.
REHEARSE_VECTORISED double product(const float* a, const float* b, std::int64_t n) {
  constexpr int lanes = 16;
  std::array<float, lanes> sums = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  double sum = 0;
  for (const float one : sums) sum += one;
  for (; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

REHEARSE_VECTORISED void add_multiple(float factor, const float* __restrict a, float* __restrict to,
                                      std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * a[i];
}

REHEARSE_VECTORISED void multiply(float factor, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] *= factor;
}

REHEARSE_VECTORISED void blend(float keep, float part, const float* __restrict a,
                               float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = keep * to[i] + part * a[i];
}

REHEARSE_VECTORISED void take_off(float scale, const float* __restrict a, float* __restrict to,
                                  std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = without(to[i], scale, a[i]);
}

double length(const float* a, std::int64_t n) { return std::sqrt(product(a, a, n)); }

/// Makes column k orthogonal to those before it, twice, because once leaves rounding errors of the
/// size of what was taken off (Giraud et al. 2005). Returns its length.
double without_earlier(float* left, std::int64_t rows, int k) {
  float* const column = left + k * rows;
  for (int pass = 0; pass < 2; ++pass)
    for (int j = 0; j < k; ++j) {
      const float* const earlier = left + j * rows;
      add_multiple(static_cast<float>(-product(earlier, column, rows)), earlier, column, rows);
    }
  return length(column, rows);
}

}  // namespace

void project(const program::Factors& size, const float* matrix, const float* right, float* left) {
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (int k = 0; k < size.rank; ++k)
      left[k * size.rows + i] = static_cast<float>(
          product(matrix + i * size.columns, right + k * size.columns, size.columns));
}

void orthonormalise(const program::Factors& size, float* left) {
  for (int k = 0; k < size.rank; ++k) {
    float* const column = left + k * size.rows;
    const double length_before = length(column, size.rows);
    double after = without_earlier(left, size.rows, k);
    if (depends(length_before, after)) {
      draw(replacement_key(k), 0, column, size.rows);
      after = without_earlier(left, size.rows, k);
    }
    if (after > 0) multiply(static_cast<float>(1 / after), column, size.rows);
  }
}

void project_back(const program::Factors& size, const float* matrix, const float* left,
                  float* right) {
  std::fill_n(right, size.rank * size.columns, 0.0F);
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (int k = 0; k < size.rank; ++k)
      add_multiple(left[k * size.rows + i], matrix + i * size.columns, right + k * size.columns,
                   size.columns);
}

void expand(const program::Factors& size, const float* left, const float* right, float scale,
            float* target, float* residual) {
  for (std::int64_t i = 0; i < size.rows; ++i) {
    float* const row = target + i * size.columns;
    std::fill_n(row, size.columns, 0.0F);
    for (int k = 0; k < size.rank; ++k)
      add_multiple(left[k * size.rows + i], right + k * size.columns, row, size.columns);
    if (residual != nullptr) take_off(scale, row, residual + i * size.columns, size.columns);
  }
}

void add_to_residual(const float* source, float* residual, std::int64_t elements) {
  add_multiple(1, source, residual, elements);
}

void draw(RandomKey key, std::int64_t first, float* target, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) target[i] = normal_number(key, first + i);
}

void blend_momentum(double beta1, double scale, const float* moment, float* target,
                    std::int64_t elements) {
  blend(static_cast<float>(1 - beta1), static_cast<float>(beta1 * scale), moment, target, elements);
}

}  // namespace rehearse::runtime
