// Lists the NVIDIA GPUs that the driver knows. Loads the driver's libraries at run time, so the
// program links nothing of CUDA.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::cli {

struct Gpu {
  std::string name = {};
  std::int64_t memory = 0;  // bytes; 0: unknown
};
struct Gpus {
  std::string source = {};   // the library that answered; empty: none
  std::string driver = {};   // version of the driver; empty: unknown
  std::string problem = {};  // why there are no GPUs; empty: there are
  std::vector<Gpu> list = {};
};
Gpus find_gpus();

}  // namespace rehearse::cli
