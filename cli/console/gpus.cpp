// Asks libnvidia-ml first: it needs no CUDA context and knows the driver's version. Asks libcuda
// where a container has only that library. The function signatures are those of nvml.h and cuda.h.
#include "cli/console/gpus.h"

#include <dlfcn.h>

#include <array>

namespace rehearse::cli {
namespace {

template <class F>
F* symbol(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};

bool ask_nvml(Gpus& out) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto init = symbol<int()>(library, "nvmlInit_v2");
  const auto count = symbol<int(unsigned*)>(library, "nvmlDeviceGetCount_v2");
  const auto handle = symbol<int(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
  const auto name = symbol<int(void*, char*, unsigned)>(library, "nvmlDeviceGetName");
  const auto memory = symbol<int(void*, NvmlMemory*)>(library, "nvmlDeviceGetMemoryInfo");
  const auto driver = symbol<int(char*, unsigned)>(library, "nvmlSystemGetDriverVersion");
  const auto error = symbol<const char*(int)>(library, "nvmlErrorString");
  if (init == nullptr || count == nullptr || handle == nullptr || name == nullptr) return false;
  if (const int status = init(); status != 0) {
    out.problem = std::string("libnvidia-ml: ") + (error != nullptr ? error(status) : "error");
    return false;
  }
  out.source = "libnvidia-ml";
  std::array<char, 128> text{};
  if (driver != nullptr && driver(text.data(), text.size()) == 0) out.driver = text.data();
  unsigned n = 0;
  count(&n);
  for (unsigned i = 0; i < n; ++i) {
    void* device = nullptr;
    NvmlMemory bytes;
    if (handle(i, &device) != 0) continue;
    Gpu gpu;
    if (name(device, text.data(), text.size()) == 0) gpu.name = text.data();
    if (memory != nullptr && memory(device, &bytes) == 0)
      gpu.memory = static_cast<std::int64_t>(bytes.total);
    out.list.push_back(std::move(gpu));
  }
  return true;
}

bool ask_cuda(Gpus& out) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto init = symbol<int(unsigned)>(library, "cuInit");
  const auto count = symbol<int(int*)>(library, "cuDeviceGetCount");
  const auto name = symbol<int(char*, int, int)>(library, "cuDeviceGetName");
  const auto memory = symbol<int(std::size_t*, int)>(library, "cuDeviceTotalMem_v2");
  if (init == nullptr || count == nullptr || name == nullptr) return false;
  if (const int status = init(0); status != 0) {
    out.problem = "libcuda: cuInit fails with error " + std::to_string(status);
    return false;
  }
  out.source = "libcuda";
  int n = 0;
  count(&n);
  for (int i = 0; i < n; ++i) {
    std::array<char, 128> text{};
    std::size_t bytes = 0;
    Gpu gpu;
    if (name(text.data(), text.size(), i) == 0) gpu.name = text.data();
    if (memory != nullptr && memory(&bytes, i) == 0) gpu.memory = static_cast<std::int64_t>(bytes);
    out.list.push_back(std::move(gpu));
  }
  return true;
}

}  // namespace

Gpus find_gpus() {
  Gpus out;
  if (ask_nvml(out) || ask_cuda(out)) {
    out.problem.clear();
    if (out.list.empty()) out.problem = "the driver lists no GPU";
  } else if (out.problem.empty()) {
    out.problem = "no NVIDIA driver (neither libnvidia-ml.so.1 nor libcuda.so.1)";
  }
  return out;
}

}  // namespace rehearse::cli
