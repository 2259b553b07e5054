#include "cli/commands/training.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"

namespace rehearse::cli {
namespace {

const Training& load() {
  const std::string path = find_module(training_module).string();
  if (path.empty())
    throw InputError(fmt::format(
        "training needs LibTorch: {} is neither beside the program nor in its lib folder; "
        "`make build` sets LibTorch up and builds it",
        training_module));
  // RTLD_GLOBAL, because the CUDA plug-in needs symbols of the module and of LibTorch.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    throw InputError(fmt::format(
        "training needs LibTorch: {} (`make build` sets LibTorch up and builds what uses it)",
        dlerror()));
  const auto offer = reinterpret_cast<const Training* (*)()>(dlsym(library, "rehearse_training"));
  if (offer == nullptr) throw InputError(fmt::format("{} is no module of this program", path));
  return *offer();
}

}  // namespace

const Training& training() {
  static const Training& loaded = load();
  return loaded;
}

}  // namespace rehearse::cli
