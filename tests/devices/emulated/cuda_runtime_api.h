// CUDA's runtime on a CPU, as far as runtime/cuda calls it: see README.md. Work has ended when the
// call that issues it returns.
#pragma once
#include <chrono>
#include <cstdlib>
#include <cstring>

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
struct EmulatedStream;
using cudaStream_t = EmulatedStream*;
struct EmulatedEvent {
  std::chrono::steady_clock::time_point at = {};
};
using cudaEvent_t = EmulatedEvent*;
using cudaHostFn_t = void (*)(void*);
struct cudaDeviceProp {
  char name[256];
};

inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocPortable = 1, cudaHostAllocMapped = 2;

inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
/// REHEARSE_EMULATED_GPUS: how many devices the machine has; 64.
inline cudaError_t cudaGetDeviceCount(int* count) {
  const char* const text = std::getenv("REHEARSE_EMULATED_GPUS");
  *count = text == nullptr ? 64 : std::atoi(text);
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  for (int i = 0; i < size; ++i) text[i] = 0;
  text[0] = static_cast<char>('0' + device / 10);
  text[1] = static_cast<char>('0' + device % 10);
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  std::strcpy(out->name, "emulated");
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = 0;
  return cudaSuccess;
}

/// Filled with NaN, in each type. More than 1 TiB is more than the device has.
inline cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return cudaErrorMemoryAllocation;
  *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*out == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*out, 0xff, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  return cudaMalloc(out, bytes);
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                   cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = new EmulatedEvent;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t begin, cudaEvent_t end) {
  *out = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
