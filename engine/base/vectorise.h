// Inner loops over the ranks of a role. GCC compiles each loop twice, for AVX2 and for the
// baseline; the program chooses one when it starts. Neither uses fused multiply-add, so both give
// the same bits.
#pragma once
#include <cstddef>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define REHEARSE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define REHEARSE_CLONES
#endif

namespace rehearse {

/// The largest of `most` and the `n` values.
double largest(const double* values, std::size_t n, double most);

}  // namespace rehearse
