// LibTorch's streams, which are all the CPU here: see ../../README.md.
#pragma once
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

class CUDAStream {
 public:
  cudaStream_t stream() const { return nullptr; }
  DeviceIndex device_index() const { return 0; }
  Device device() const { return Device(kCPU); }
};

inline CUDAStream getStreamFromPool(bool /*high_priority*/, DeviceIndex /*device*/) { return {}; }
inline CUDAStream getCurrentCUDAStream() { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}

}  // namespace c10::cuda
