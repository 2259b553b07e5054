#include "runtime/device/load_device.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "runtime/device/cpu_device.h"

namespace rehearse::runtime {

namespace {

std::filesystem::path plugin_of(const std::string& kind) {
  return find_module(fmt::format("librehearse_device_{}.so", kind));
}

bool is_cpu(const std::string& kind) { return kind == "auto" || kind == "cpu"; }

}  // namespace

std::string check_device(const std::string& kind) {
  if (is_cpu(kind)) return "cpu";
  const bool missing = plugin_of(kind).empty();
  if (kind == "cuda" && missing)
    throw InputError(
        "run.device: \"cuda\": this build has no plug-in for CUDA: build it with `make gpu`, or "
        "leave run.device out to train on the CPU");
  if (kind == "cuda" && !has_gpu())
    throw InputError(
        "run.device: \"cuda\": this machine has no NVIDIA driver (neither /dev/nvidiactl nor "
        "/dev/dxg); leave run.device out to train on the CPU");
  if (missing) {
    const std::string near = nearest(kind, {"auto", "cpu", "cuda"});
    throw InputError(fmt::format("run.device: \"{}\" is no device: auto, cpu or cuda{}", kind,
                                 near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
  }
  return kind;
}

bool has_gpu() {
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg");
}

std::unique_ptr<Device> make_device(const std::string& kind, int rank, Control* control) {
  check_device(kind);
  if (is_cpu(kind)) return cpu_device();
  const std::filesystem::path path = plugin_of(kind);
  // Torch's CUDA libraries and its CPU libraries look up symbols in each other, so CUDA's are
  // global.
  void* const library = dlopen(path.c_str(), RTLD_NOW | (kind == "cuda" ? RTLD_GLOBAL : 0));
  if (library == nullptr)
    throw BackendError(fmt::format("the device {} cannot be loaded: {}", kind, dlerror()));
  auto* const make = reinterpret_cast<MakeDevice*>(dlsym(library, "rehearse_device"));
  if (make == nullptr) throw BackendError(fmt::format("{} is no device", path.string()));
  std::string error;
  std::unique_ptr<Device> device(make(device_version, rank, control, &error));
  if (device == nullptr) throw BackendError(error);
  return device;
}

}  // namespace rehearse::runtime
