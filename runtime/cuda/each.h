// Runs a function object for each of `count` numbers, in no order: on the device where nvcc
// compiles it, and one after the other where a C++ compiler does, for tests on machines without a
// GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace rehearse::runtime {

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

#else

template <class Body>
cudaError_t each(std::int64_t count, cudaStream_t /*stream*/, const Body& body) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
  return cudaSuccess;
}

#endif

}  // namespace rehearse::runtime
