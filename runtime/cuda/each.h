// Starts the code of kernels: on the device where nvcc compiles it, and one after the other where a
// C++ compiler does, for tests on machines without a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// A thread of a block, and how many blocks there are.
struct BlockThread {
  std::int64_t block = 0, blocks = 1;
  int thread = 0;
};

// each: calls body(i) for each of `count` numbers, in no order.
//
// each_block: runs `blocks` blocks of Body::threads threads, in no order. A block's threads share a
// Body::Shared, which holds anything when they begin. They call body(phase, at, shared) for each of
// body.phases phases, and none begins a phase before all have ended the one before.

#ifdef __CUDACC__

template <class Body>
__global__ void each_number(Body body, std::int64_t count) {
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += threads)
    body(i);
}

template <class Body>
cudaError_t each(std::int64_t count, cudaStream_t stream, const Body& body) {
  constexpr std::int64_t threads = 256, most_blocks = std::int64_t{1} << 20;
  if (count == 0) return cudaSuccess;
  const std::int64_t blocks = std::min((count + threads - 1) / threads, most_blocks);
  each_number<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(body, count);
  return cudaGetLastError();
}

template <class Body>
__global__ void each_thread(Body body) {
  __shared__ typename Body::Shared shared;
  const BlockThread at{blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x)};
#pragma unroll
  for (int phase = 0; phase < body.phases; ++phase) {
    body(phase, at, shared);
    ::__syncthreads();
  }
}

template <class Body>
cudaError_t each_block(std::int64_t blocks, cudaStream_t stream, const Body& body) {
  if (blocks == 0) return cudaSuccess;
  each_thread<<<static_cast<unsigned>(blocks), Body::threads, 0, stream>>>(body);
  return cudaGetLastError();
}

#else

template <class Body>
cudaError_t each(std::int64_t count, cudaStream_t /*stream*/, const Body& body) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
  return cudaSuccess;
}

// Blocks run from the last one to the first, and threads forwards and backwards in turn, so that
// code that relies on an order gives wrong results.
template <class Body>
cudaError_t each_block(std::int64_t blocks, cudaStream_t /*stream*/, const Body& body) {
  const auto shared = std::make_unique<typename Body::Shared>();
  for (std::int64_t block = blocks - 1; block >= 0; --block) {
    std::memset(shared.get(), 0xff, sizeof *shared);
    for (int phase = 0; phase < body.phases; ++phase)
      for (int i = 0; i < Body::threads; ++i)
        body(phase, BlockThread{block, blocks, phase % 2 == 0 ? i : Body::threads - 1 - i},
             *shared);
  }
  return cudaSuccess;
}

#endif

// What threads do to one number at the same time.

/// Returns the number before.
REHEARSE_BOTH std::uint32_t add_to(std::uint32_t* number, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return ::atomicAdd(number, value);
#else
  const std::uint32_t old = *number;
  *number += value;
  return old;
#endif
}
REHEARSE_BOTH void set_bit(std::uint32_t* word, int bit) {
#ifdef __CUDA_ARCH__
  ::atomicOr(word, 1U << bit);
#else
  *word |= 1U << bit;
#endif
}

REHEARSE_BOTH int bits_in(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return ::__popc(word);
#else
  return std::popcount(word);
#endif
}

}  // namespace rehearse::runtime
