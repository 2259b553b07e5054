// LibTorch's allocator, which is the CPU's here: see ../../README.md.
#pragma once
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda::CUDACachingAllocator {

inline Allocator* get() { return GetCPUAllocator(); }
inline void recordStream(const DataPtr&, CUDAStream) {}

}  // namespace c10::cuda::CUDACachingAllocator
