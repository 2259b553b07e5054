// Entry point of the CUDA plug-in: chooses this rank's device and makes the accelerator.

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <algorithm>

#include "runtime/communication/accelerator.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/cuda_stream.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/cuda/watch.h"

namespace rehearse::runtime {
namespace {

int choose_device(const Environment& environment) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count == 0) throw BackendError("there is no CUDA device (CUDA_VISIBLE_DEVICES hides any)");
  // NCCL refuses two ranks of a communicator on one device ("Duplicate GPU detected"). With one
  // visible device any local rank is accepted: the launcher may show each rank its own.
  if (count > 1 && environment.local_rank >= count) {
    throw BackendError(
        fmt::format("local rank {} has no device: {} ranks on this machine, {} "
                    "CUDA devices",
                    environment.local_rank, environment.local_world_size, count));
  }
  return environment.local_rank % count;
}

class CudaAccelerator : public Accelerator {
 public:
  explicit CudaAccelerator(Control& control)
      : watch_(std::make_shared<Watch>(control)), device_(choose_device(control.environment())) {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device_));
  }

  AcceleratorInfo info() const override {
    cudaDeviceProp properties = {};
    check_cuda(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    AcceleratorInfo info;
    info.name = properties.name;
    info.memory = Bytes(static_cast<double>(total));
    info.free_memory = Bytes(static_cast<double>(free));
    info.index = device_;
    info.major = properties.major;
    info.minor = properties.minor;
    return info;
  }

  std::unique_ptr<Stream> stream(bool high_priority) override {
    return std::make_unique<CudaStream>(watch_, device_, high_priority);
  }

  std::unique_ptr<Event> event(bool timed) override {
    return std::make_unique<CudaEvent>(watch_, timed);
  }

  std::unique_ptr<Communicator> communicator(const std::string& channel, std::vector<Id> ranks,
                                             Stream& stream) override {
    const auto rank = static_cast<Id>(watch_->control().environment().rank);
    const auto place = std::ranges::find(ranks, rank);
    if (place == ranks.end()) {
      throw ProgramError(fmt::format("channel {}: rank {} is not in its group", channel, rank));
    }
    const auto member = static_cast<int>(place - ranks.begin());
    return std::make_unique<NcclCommunicator>(watch_, channel, std::move(ranks), member,
                                              static_cast<CudaStream&>(stream));
  }

 private:
  std::shared_ptr<Watch> watch_;
  int device_;
};

}  // namespace
}  // namespace rehearse::runtime

extern "C" rehearse::runtime::Accelerator* rehearse_accelerator(int version,
                                                                rehearse::runtime::Control* control,
                                                                std::string* error) {
  try {
    if (version != rehearse::runtime::accelerator_version) {
      *error = fmt::format(
          "the CUDA plug-in has version {} of the interface, the program {}: "
          "build both together (`make gpu`)",
          rehearse::runtime::accelerator_version, version);
      return nullptr;
    }
    return new rehearse::runtime::CudaAccelerator(*control);
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
