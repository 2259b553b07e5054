#include "runtime/cuda/cuda_stream.h"

#include <utility>

#include "runtime/cuda/check.h"

namespace rehearse::runtime {

CudaEvent::CudaEvent(std::shared_ptr<Watch> watch, bool timed) : watch_(std::move(watch)) {
  check_cuda(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
}

CudaEvent::~CudaEvent() { cudaEventDestroy(event_); }

bool CudaEvent::done() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check_cuda(state, "cudaEventQuery");
  return true;
}

void CudaEvent::wait() const {
  watch_->wait([this] { return done(); }, "the device's work before an event");
}

double CudaEvent::seconds_since(const Event& begin) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(begin).raw(), raw()),
             "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

void wait_for(Watch& watch, cudaStream_t stream) {
  watch.wait(
      [stream] {
        const cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaErrorNotReady) {
          (void)cudaGetLastError();
          return false;
        }
        check_cuda(state, "cudaStreamQuery");
        return true;
      },
      "the work of a stream");
}

CudaStream::CudaStream(std::shared_ptr<Watch> watch, int device, bool high_priority)
    : watch_(std::move(watch)),
      stream_(c10::cuda::getStreamFromPool(high_priority, static_cast<c10::DeviceIndex>(device))) {}

void CudaStream::launch(const Body& body) {
  // CUDA's current device is set per thread, and a lane is a thread.
  check_cuda(cudaSetDevice(stream_.device_index()), "cudaSetDevice");
  c10::cuda::setCurrentCUDAStream(stream_);
  body.run(body.self, body);
}

void CudaStream::call(const Body& body) {
  auto* const kept = new Body(body);  // `run` frees it
  const auto run = [](void* memory) {
    const std::unique_ptr<Body> mine(static_cast<Body*>(memory));
    mine->run(mine->self, *mine);
  };
  const cudaError_t error = cudaLaunchHostFunc(raw(), run, kept);
  if (error != cudaSuccess) delete kept;
  check_cuda(error, "cudaLaunchHostFunc");
}

void CudaStream::record(Event& event) {
  check_cuda(cudaEventRecord(static_cast<CudaEvent&>(event).raw(), raw()), "cudaEventRecord");
}

void CudaStream::wait(const Event& event) {
  check_cuda(cudaStreamWaitEvent(raw(), static_cast<const CudaEvent&>(event).raw(), 0),
             "cudaStreamWaitEvent");
}

void CudaStream::synchronize() { wait_for(*watch_, raw()); }

}  // namespace rehearse::runtime
