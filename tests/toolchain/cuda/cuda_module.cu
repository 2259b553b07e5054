// Tests that the parts of the CUDA plug-in compile and link: kernels, one with the optimizer's
// formulas, torch's streams and allocator, NCCL and CUB. The code is never run, because the machine
// that builds it may have no GPU.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cub/cub.cuh>

#include "runtime/kernels/elements.h"

namespace {

__global__ void scale(float* values, float factor, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] *= factor;
}

using rehearse::runtime::StepFactors;
using rehearse::runtime::StepScalars;

__global__ void step(StepFactors factors, const StepScalars* scalars, const std::uint16_t* grad,
                     float* param, float* moment1, float* moment2, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count || scalars->skip) return;
  rehearse::runtime::adamw(factors, *scalars, rehearse::runtime::from_bf16(grad[i]), param[i],
                           moment1[i], moment2[i]);
}

__global__ void choose(rehearse::runtime::Decision decision,
                       rehearse::runtime::NormAndScale gradients,
                       rehearse::runtime::SkipCount* skips, StepScalars* scalars, double* norm) {
  rehearse::runtime::decide(decision, gradients, *skips, *scalars, norm);
}

}  // namespace

/// One AdamW step of `count` elements, whose gradients are bf16.
extern "C" void adamw_step(rehearse::runtime::Decision decision, StepFactors factors,
                           rehearse::runtime::NormAndScale gradients,
                           rehearse::runtime::SkipCount* skips, StepScalars* scalars, double* norm,
                           const std::uint16_t* grad, float* param, float* moment1, float* moment2,
                           int count) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  choose<<<1, 1, 0, stream>>>(decision, gradients, skips, scalars, norm);
  step<<<(count + 255) / 256, 256, 0, stream>>>(factors, scalars, grad, param, moment1, moment2,
                                                count);
}

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
