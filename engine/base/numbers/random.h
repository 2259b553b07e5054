// Random numbers without state. A draw is a hash of its key (seed, purpose, rank, step, op), so
// every executor gets the same number for the same key, in any order and on any thread
// (counter-based generation: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011). The hash applies a 32-bit multiply-xorshift bijection twice, with two keys. It vectorises,
// and one draw costs about a nanosecond.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/id.h"

namespace rehearse {

/// The purpose of a draw. Draws for different purposes are independent.
enum class Draw : std::uint32_t {
  compute,
  link,
  straggler,
  test,
  select,
  failure,
  quantise,
  factor,
  graph
};

/// The finaliser of splitmix64 (Steele et al. 2014).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// The key of a draw without the rank. It is computed once per op and then hashed with each rank.
struct RandomKey {
  std::uint32_t a = 0, b = 0;
};
constexpr RandomKey random_key(std::uint64_t seed, Draw what, std::uint64_t step,
                               std::uint64_t op) {
  std::uint64_t k = mix64(seed);
  k = mix64(k ^ static_cast<std::uint64_t>(what));
  k = mix64(k ^ step);
  k = mix64(k ^ op);
  return {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)};
}

/// 32 uniformly distributed bits.
constexpr std::uint32_t random_bits(RandomKey key, std::uint32_t rank) {
  auto mix = [](std::uint32_t x) {
    x ^= x >> 16;
    x *= 0x21f0aaadU;
    x ^= x >> 15;
    x *= 0x735a2d97U;
    x ^= x >> 15;
    return x;
  };
  return mix(mix(rank * 0x9e3779b9U + key.a) ^ key.b);
}
/// A uniform number in (0, 1), both ends excluded.
constexpr double random_uniform(RandomKey key, std::uint32_t rank) {
  return (random_bits(key, rank) + 0.5) * 0x1p-32;
}

/// Draws log-normal factors with mean 1: exp(sigma z - sigma^2 / 2) for a standard normal z. Uses a
/// table of 2^table_bits equally likely quantiles, scaled so that their mean is 1. With sigma 0
/// every draw is 1.
class LogNormal {
 public:
  static constexpr int table_bits = 15;
  explicit LogNormal(double sigma);
  double operator()(RandomKey key, std::uint32_t rank) const {
    return (*table_)[random_bits(key, rank) >> (32 - table_bits)];
  }
  /// out[i] = factor of ranks[i].
  void fill(RandomKey key, std::span<const Id> ranks, std::span<double> out) const;
  double sigma() const { return sigma_; }

 private:
  double sigma_ = 0;
  std::shared_ptr<const std::vector<float>> table_ = {};
};

}  // namespace rehearse
