// The device that a job names.
#pragma once
#include <memory>
#include <string>

#include "runtime/control/control.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

/// Throws InputError if run.device = `kind` is none of auto, cpu, and NAME of a plug-in
/// librehearse_device_NAME.so that lies where the program looks for modules; cuda needs a GPU's
/// driver, too. Returns the device that a rank would take: auto is the CPU.
std::string check_device(const std::string& kind);
/// Whether this machine has the driver of an NVIDIA GPU. Loads no library.
bool has_gpu();
/// The device of a rank. All ranks of a run make theirs at the same point of the program, and
/// `control` must outlive it; null: the rank runs alone. Throws InputError as check_device, and
/// BackendError when a plug-in does not load.
std::unique_ptr<Device> make_device(const std::string& kind, int rank, Control* control = nullptr);

}  // namespace rehearse::runtime
