// Entry point of the CUDA plug-in.
#include <fmt/format.h>

#include "engine/base/errors.h"
#include "runtime/cuda/cuda_device.h"

extern "C" rehearse::runtime::Device* rehearse_device(int version, int /*rank*/,
                                                      rehearse::runtime::Control* control,
                                                      std::string* error) {
  try {
    if (version != rehearse::runtime::device_version) {
      *error = fmt::format(
          "the CUDA plug-in has version {} of the interface, the program {}: build both together "
          "(`make gpu`)",
          rehearse::runtime::device_version, version);
      return nullptr;
    }
    if (control == nullptr) {
      *error = "a rank on a GPU needs a control plane";
      return nullptr;
    }
    return new rehearse::runtime::CudaDevice(*control);
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
