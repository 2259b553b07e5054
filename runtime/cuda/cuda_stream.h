// CUDA streams and events. Streams come from torch's pool, so that torch's kernels and allocator
// know them.
#pragma once
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "runtime/cuda/watch.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

class CudaEvent : public Event {
 public:
  CudaEvent(std::shared_ptr<Watch> watch, bool timed);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  bool done() const override;
  void wait() const override;
  double seconds_since(const Event& begin) const override;
  cudaEvent_t raw() const { return event_; }

 private:
  std::shared_ptr<Watch> watch_;
  cudaEvent_t event_ = nullptr;
};

/// Blocks the host until the stream is empty, and watches the communicators meanwhile.
void wait_for(Watch& watch, cudaStream_t stream);

class CudaStream : public Stream {
 public:
  CudaStream(std::shared_ptr<Watch> watch, int device, bool high_priority);
  /// Runs it now, with this stream current on this thread, so that what it does is queued here.
  void launch(const Body& body) override;
  /// Queues it as a function of the host. It may not call CUDA.
  void call(const Body& body) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  /// An asynchronous NCCL error, a timeout or a verdict of the control plane aborts all
  /// communicators and throws BackendError.
  void synchronize() override;
  cudaStream_t raw() const { return stream_.stream(); }

 private:
  std::shared_ptr<Watch> watch_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace rehearse::runtime
