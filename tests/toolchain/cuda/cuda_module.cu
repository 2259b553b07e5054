// Tests that the parts of the CUDA plug-in compile and link: a kernel, torch's streams and
// allocator, NCCL and CUB. The code is never run, because the machine that builds it may have no
// GPU.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cub/cub.cuh>

namespace {

__global__ void scale(float* values, float factor, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] *= factor;
}

}  // namespace

/// Averages `values` (count elements) over the communicator's ranks, then adds up the averages into
/// `sum` (1 element), on torch's current stream.
extern "C" void mean_and_sum(float* values, float* sum, int count, ncclComm_t comm) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  int ranks = 1;
  ncclCommCount(comm, &ranks);
  ncclAllReduce(values, values, count, ncclFloat, ncclSum, comm, stream);
  scale<<<(count + 255) / 256, 256, 0, stream>>>(values, 1.0F / static_cast<float>(ranks), count);
  std::size_t bytes = 0;
  cub::DeviceReduce::Sum(nullptr, bytes, values, sum, count, stream);
  const auto scratch = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  cub::DeviceReduce::Sum(scratch.get(), bytes, values, sum, count, stream);
}
