// Says which library computes the large fp32 matrix products of the blocks on this processor
// (product.cpp). The command line includes this header, so it uses no LibTorch types.
#pragma once
#include <cstdint>
#include <string>

namespace rehearse::models {

struct LargeProducts {
  bool one_dnn = false;  // false: LibTorch's public functions, as for small products
  std::string why = {};  // the reason, printed by `rehearse doctor`
};
/// Decided at the first call, from the processor's instructions and from products computed both
/// ways. The answer is the same on every call and in every run on one machine, so a resumed run
/// computes the same bits.
const LargeProducts& large_products();

/// A product is large from this many multiplications. Below it, looking up oneDNN's kernel costs
/// more than the kernel gains.
inline constexpr std::int64_t large_product = std::int64_t{1} << 25;
/// For tests: sets a lower limit, so that small products are computed as large ones. Returns the
/// previous limit.
std::int64_t lower_large_product(std::int64_t multiplications);

/// The vector instructions that LibTorch's own kernels use here, as LibTorch names them: "AVX512".
std::string vector_instructions();

}  // namespace rehearse::models
