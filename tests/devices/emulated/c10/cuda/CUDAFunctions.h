// See ../../README.md.
#pragma once
#include <c10/core/Device.h>

namespace c10::cuda {

inline void set_device(DeviceIndex) {}

}  // namespace c10::cuda
