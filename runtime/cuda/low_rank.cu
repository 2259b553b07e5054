// Factors of a low rank. Products of two columns, or of a row and a column, are made in 16 lanes,
// as on the CPU.
#include "runtime/cuda/each.h"
#include "runtime/cuda/low_rank.h"
#include "runtime/kernels/low_rank.h"

namespace rehearse::runtime {
namespace {

constexpr int threads_of_block = 256, product_lanes = 16;

REHEARSE_BOTH float lane_product(const float* a, const float* b, std::int64_t n, int lane) {
  float sum = 0;
  for (std::int64_t i = lane; i - lane + product_lanes <= n; i += product_lanes) sum += a[i] * b[i];
  return sum;
}
/// What the lanes and the elements beyond them make.
REHEARSE_BOTH double whole_product(const float* sums, const float* a, const float* b,
                                   std::int64_t n) {
  double sum = 0;
  for (int lane = 0; lane < product_lanes; ++lane) sum += sums[lane];
  for (std::int64_t i = n / product_lanes * product_lanes; i < n; ++i)
    sum += double{a[i]} * double{b[i]};
  return sum;
}

/// A block makes 16 entries of left.
struct Project {
  static constexpr int threads = threads_of_block, phases = 2, entries = threads / product_lanes;
  struct Shared {
    float sums[threads];
  };
  program::Factors size;
  const float *matrix, *right;
  float* left;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const int lane = at.thread % product_lanes;
    const std::int64_t entry = at.block * entries + at.thread / product_lanes;
    if (entry >= size.rows * size.rank || (phase == 1 && lane != 0)) return;
    const std::int64_t row = entry / size.rank, k = entry % size.rank, n = size.columns;
    const float *const a = matrix + row * n, *const b = right + k * n;
    if (phase == 0)
      shared.sums[at.thread] = lane_product(a, b, n, lane);
    else
      left[k * size.rows + row] =
          static_cast<float>(whole_product(shared.sums + at.thread, a, b, n));
  }
};

struct ProjectBack {
  program::Factors size;
  const float *matrix, *left;
  float* right;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t k = at / size.columns, column = at % size.columns;
    float sum = 0;
    for (std::int64_t i = 0; i < size.rows; ++i)
      sum += left[k * size.rows + i] * matrix[i * size.columns + column];
    right[at] = sum;
  }
};

struct Expand {
  program::Factors size;
  const float *left, *right;
  float scale;
  float *target, *residual;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t row = at / size.columns, column = at % size.columns;
    float sum = 0;
    for (int k = 0; k < size.rank; ++k)
      sum += left[k * size.rows + row] * right[k * size.columns + column];
    target[at] = sum;
    if (residual != nullptr) residual[at] = without(residual[at], scale, sum);
  }
};

struct AddTo {
  const float* source;
  float* target;
  REHEARSE_BOTH void operator()(std::int64_t i) const { target[i] += source[i]; }
};

/// One block. In rounds of three phases: a product in lanes, the product, and what follows from it.
/// Column k has 4k + 3 rounds: its length; two passes over the columns before it; its length again,
/// and a new direction where too little is left; two passes for that; the length to divide by.
struct Orthonormalise {
  static constexpr int threads = threads_of_block;
  struct Shared {
    float sums[product_lanes];
    double product, length, length_left;
    bool anew;
  };
  program::Factors size;
  float* left;
  int phases;

  struct Round {
    int k, number;
  };
  REHEARSE_BOTH static int rounds(int k) { return 4 * k + 3; }
  REHEARSE_BOTH static Round round_at(int number) {
    int k = 0;
    for (; number >= rounds(k); ++k) number -= rounds(k);
    return {k, number};
  }
  REHEARSE_BOTH float* column(int k) const { return left + k * size.rows; }

  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const auto [k, number] = round_at(phase / 3);
    const bool length = number == 0 || number == 2 * k + 1 || number == 4 * k + 2;
    const bool second = number > 2 * k + 1;  // for a new direction
    if (second && !shared.anew && number != 4 * k + 2) return;
    const int earlier = length ? k : (number - (second ? 2 : 1)) % k;
    const float* const a = column(earlier);
    float* const b = column(k);
    if (phase % 3 == 0) {
      if (at.thread < product_lanes)
        shared.sums[at.thread] = lane_product(a, b, size.rows, at.thread);
    } else if (phase % 3 == 1) {
      if (at.thread == 0) conclude(shared, k, number, whole_product(shared.sums, a, b, size.rows));
    } else if (!length) {
      const auto factor = static_cast<float>(-shared.product);
      for (std::int64_t i = at.thread; i < size.rows; i += threads) b[i] += factor * a[i];
    } else if (number == 2 * k + 1 && shared.anew) {
      const RandomKey key = replacement_key(k);
      for (std::int64_t i = at.thread; i < size.rows; i += threads) b[i] = normal_number(key, i);
    } else if (number == 4 * k + 2 && shared.length_left > 0) {
      const auto factor = static_cast<float>(1 / shared.length_left);
      for (std::int64_t i = at.thread; i < size.rows; i += threads) b[i] *= factor;
    }
  }

 private:
  REHEARSE_BOTH static void conclude(Shared& shared, int k, int number, double product) {
    shared.product = product;
    if (number == 0) shared.length = std::sqrt(product);
    if (number == 2 * k + 1) {
      shared.length_left = std::sqrt(product);
      shared.anew = depends(shared.length, shared.length_left);
    }
    if (number == 4 * k + 2 && shared.anew) shared.length_left = std::sqrt(product);
  }
};

}  // namespace

cudaError_t queue_project(const program::Factors& size, const float* matrix, const float* right,
                          float* left, cudaStream_t stream) {
  const std::int64_t entries = size.rows * size.rank;
  return each_block((entries + Project::entries - 1) / Project::entries, stream,
                    Project{size, matrix, right, left});
}

cudaError_t queue_orthonormalise(const program::Factors& size, float* left, cudaStream_t stream) {
  int rounds = 0;
  for (int k = 0; k < size.rank; ++k) rounds += Orthonormalise::rounds(k);
  return each_block(1, stream, Orthonormalise{size, left, 3 * rounds});
}

cudaError_t queue_project_back(const program::Factors& size, const float* matrix, const float* left,
                               float* right, cudaStream_t stream) {
  return each(size.rank * size.columns, stream, ProjectBack{size, matrix, left, right});
}

cudaError_t queue_expand(const program::Factors& size, const float* left, const float* right,
                         float scale, float* target, float* residual, cudaStream_t stream) {
  return each(size.rows * size.columns, stream, Expand{size, left, right, scale, target, residual});
}

cudaError_t queue_add(const float* source, float* target, std::int64_t elements,
                      cudaStream_t stream) {
  return each(elements, stream, AddTo{source, target});
}

}  // namespace rehearse::runtime
