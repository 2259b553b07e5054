// Compares the kernels on factors of the CUDA plug-in with those of runtime/kernels: the same bits
// for all sizes. See cuda_kernels_test.cpp.
#include <fmt/format.h>

#include <limits>

#include "runtime/kernels/low_rank.h"
#include "tests/runtime/cuda/cuda_kernels.h"

namespace rehearse::runtime {
namespace {

using program::Factors;

constexpr Factors sizes[] = {{.rows = 1, .columns = 1, .rank = 1},
                             {.rows = 15, .columns = 17, .rank = 2},
                             {.rows = 64, .columns = 48, .rank = 4},
                             {.rows = 301, .columns = 77, .rank = 5},
                             {.rows = 9, .columns = 700, .rank = 9}};

class CudaFactors : public CudaKernels {
 protected:
  /// Numbers here and in the device's memory.
  struct Twins {
    std::vector<float> here = {};
    std::shared_ptr<std::byte> there = {};
    float* at() const { return reinterpret_cast<float*>(there.get()); }
  };
  Twins twins(std::int64_t count, unsigned seed) {
    const auto bytes = numbers(DType::f32, count, seed);
    std::vector<float> values(static_cast<std::size_t>(count));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return twins(values);
  }
  Twins twins(const std::vector<float>& values) {
    return {values, there(values.data(), 4 * values.size())};
  }
  void expect_equal(const Twins& one, const std::string& what) {
    std::vector<float> found(one.here.size());
    device_->fetch(one.there.get(), reinterpret_cast<std::byte*>(found.data()),
                   static_cast<std::int64_t>(4 * found.size()));
    EXPECT_EQ(std::memcmp(found.data(), one.here.data(), 4 * found.size()), 0) << what;
  }
  static std::string text(const Factors& size) {
    return fmt::format("{} x {}, rank {}", size.rows, size.columns, size.rank);
  }
};

TEST_F(CudaFactors, AreProjectedTheSame) {
  for (const Factors& size : sizes) {
    const Twins matrix = twins(size.rows * size.columns, 1);
    Twins right = twins(size.rank * size.columns, 2), left = twins(size.rank * size.rows, 3);
    project(size, matrix.here.data(), right.here.data(), left.here.data());
    as_body([&] { gpu().project(size, matrix.at(), right.at(), left.at()); });
    expect_equal(left, "left of " + text(size));
    project_back(size, matrix.here.data(), left.here.data(), right.here.data());
    as_body([&] { gpu().project_back(size, matrix.at(), left.at(), right.at()); });
    expect_equal(right, "right of " + text(size));
  }
}

TEST_F(CudaFactors, ExpandToTheSameMatrix) {
  for (const Factors& size : sizes) {
    Twins right = twins(size.rank * size.columns, 2), left = twins(size.rank * size.rows, 3);
    left.here[0] = std::numeric_limits<float>::infinity();  // its row of the residual becomes 0
    left = twins(left.here);
    Twins target = twins(size.rows * size.columns, 4),
          residual = twins(size.rows * size.columns, 5);
    for (const bool kept : {true, false}) {
      expand(size, left.here.data(), right.here.data(), 0.5F, target.here.data(),
             kept ? residual.here.data() : nullptr);
      as_body([&] {
        gpu().expand(size, left.at(), right.at(), 0.5F, target.at(),
                     kept ? residual.at() : nullptr);
      });
      expect_equal(target, "matrix of " + text(size));
      expect_equal(residual, "residual of " + text(size));
    }
    add_to_residual(target.here.data(), residual.here.data(), size.rows * size.columns);
    as_body([&] { gpu().add_to_residual(target.at(), residual.at(), size.rows * size.columns); });
    expect_equal(residual, "residual with a gradient of " + text(size));
  }
}

TEST_F(CudaFactors, BecomeOrthonormalAlike) {
  enum class Columns { independent, equal, zero, not_finite };
  for (const Factors& size : sizes)
    for (const Columns kind :
         {Columns::independent, Columns::equal, Columns::zero, Columns::not_finite}) {
      std::vector<float> values = twins(size.rank * size.rows, 6).here;
      const auto second = values.begin() + (size.rank > 1 ? size.rows : 0);
      if (kind == Columns::equal) std::copy_n(values.begin(), size.rows, second);
      if (kind == Columns::zero) std::fill_n(second, size.rows, 0.0F);
      if (kind == Columns::not_finite) *second = std::numeric_limits<float>::infinity();
      Twins left = twins(values);
      orthonormalise(size, left.here.data());
      as_body([&] { gpu().orthonormalise(size, left.at()); });
      expect_equal(left, fmt::format("{}, columns {}", text(size), static_cast<int>(kind)));
    }
}

}  // namespace
}  // namespace rehearse::runtime
