// LibTorch's allocator, which is the CPU's here: see ../../README.md.
#pragma once
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda::CUDACachingAllocator {

inline Allocator* get() { return GetCPUAllocator(); }
inline void recordStream(const DataPtr&, CUDAStream) {}
inline CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) { return {}; }

}  // namespace c10::cuda::CUDACachingAllocator
