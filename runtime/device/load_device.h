// The device that a job names.
#pragma once
#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace rehearse::runtime {

/// `kind`: auto, cpu, cuda, or NAME of a plug-in librehearse_device_NAME.so that lies where the
/// program looks for modules. auto is the CPU. Throws InputError for a kind that is not known, and
/// for cuda, on which training does not run yet; BackendError when a plug-in does not load.
std::unique_ptr<Device> make_device(const std::string& kind, int rank);

}  // namespace rehearse::runtime
