#include "runtime/communication/accelerator.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "engine/base/data_dir.h"
#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr const char* plugin_name = "librehearse_cuda.so";

std::string find_plugin() {
  const std::filesystem::path path = find_module(plugin_name);
  if (!path.empty()) return path;
  throw BackendError(fmt::format(
      "the CUDA plug-in {} is neither beside the program nor in its lib folder: build it with "
      "`make gpu`, or train on the CPU",
      plugin_name));
}

}  // namespace

bool has_accelerator() {
  // Looks for the driver's device files, so no library is loaded where there is no device.
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg");
}

std::unique_ptr<Accelerator> load_accelerator(Control& control, const std::string& path) {
  const std::string file = path.empty() ? find_plugin() : path;
  // Global, because torch's CUDA libraries and its CPU libraries look up symbols in each other.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw BackendError(
        fmt::format("the CUDA plug-in cannot be loaded: {} (`make gpu` on a machine with a GPU "
                    "fetches the CUDA "
                    "libraries it needs)",
                    dlerror()));
  }
  auto* make = reinterpret_cast<MakeAccelerator*>(dlsym(library, "rehearse_accelerator"));
  if (make == nullptr) throw BackendError(fmt::format("{} is no plug-in of this program", file));
  std::string error;
  std::unique_ptr<Accelerator> accelerator(make(accelerator_version, &control, &error));
  if (!accelerator) throw BackendError(error);
  return accelerator;
}

}  // namespace rehearse::runtime
