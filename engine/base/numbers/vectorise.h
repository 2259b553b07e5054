// Inner loops over the ranks of a role, or the lanes of a program. GCC compiles each loop twice,
// for AVX2 and for the baseline; the program chooses one when it starts. Neither uses fused
// multiply-add, so both give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REHEARSE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define REHEARSE_CLONES
#endif

namespace rehearse {

/// The largest of `most` and the `n` values.
double largest(const double* values, std::size_t n, double most);
/// out[i] = the larger of a[i] and b[i]. `out` may be `a` or `b`.
void max_of(double* out, const double* a, const double* b, std::size_t n);
/// into[i] = the larger of into[i] and to[i]
void raise_to(std::uint32_t* into, const std::uint32_t* to, std::size_t n);
/// out[i] = start[i] + cost
void add_to_all(double* out, const double* start, double cost, std::size_t n);
/// out[i] = start[i] + cost * factor[i]
void add_scaled(double* out, const double* start, double cost, const double* factor, std::size_t n);
/// out[i] = start[i] + cost[i] * factor[i]
void add_product(double* out, const double* start, const double* cost, const double* factor,
                 std::size_t n);
/// sum[i] += weight * values[i]
void add_weighted(double* sum, const double* values, double weight, std::size_t n);

}  // namespace rehearse
