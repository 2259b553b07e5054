// Inner loops over the ranks of a role, compiled for AVX2 beside the baseline and chosen when the
// program starts. Without fused multiply-add, so both give the same bits.
#pragma once
#include <cstddef>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define REHEARSE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define REHEARSE_CLONES
#endif

namespace rehearse {

/// The largest of `most` and n values.
double largest(const double* values, std::size_t n, double most);

}  // namespace rehearse
