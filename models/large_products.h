// Who computes the large fp32 products of the blocks on this processor; for the command, hence
// without LibTorch's types (product.cpp).
#pragma once
#include <cstdint>
#include <string>

namespace rehearse::models {

struct LargeProducts {
  bool one_dnn = false;  // else LibTorch's public functions, as for small products
  std::string why = {};  // the reason, in words for `rehearse doctor`
};
/// Found out at the first call, by the processor's instructions and by computing products both
/// ways: the same on every call and in every run on one machine, so that a resumed run repeats its
/// bits.
const LargeProducts& large_products();

/// Multiplications from which a product is large: below, finding oneDNN's kernel costs more than it
/// gains.
inline constexpr std::int64_t large_product = std::int64_t{1} << 25;
/// Tests lower it, so that small shapes take the way of the large ones. Returns the former.
std::int64_t lower_large_product(std::int64_t multiplications);

/// The vector instructions that LibTorch's own kernels use here, as it names them.
std::string vector_instructions();

}  // namespace rehearse::models
