// The CPU as a device: an op runs on its lane's thread while it is issued.
#pragma once
#include <memory>

#include "runtime/device/device.h"

namespace rehearse::runtime {

std::unique_ptr<Device> cpu_device();

}  // namespace rehearse::runtime
