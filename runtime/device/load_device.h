// The device that a job names.
#pragma once
#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace rehearse::runtime {

/// Throws InputError if run.device = `kind` is none of auto, cpu, and NAME of a plug-in
/// librehearse_device_NAME.so that lies where the program looks for modules. cuda is refused:
/// training does not run on it yet. Returns the device that a rank would take: auto is the CPU.
std::string check_device(const std::string& kind);
/// The device of a rank. Throws InputError as check_device, and BackendError when a plug-in does
/// not load.
std::unique_ptr<Device> make_device(const std::string& kind, int rank);

}  // namespace rehearse::runtime
