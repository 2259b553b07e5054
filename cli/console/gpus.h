// NVIDIA GPUs as the driver knows them, asked without linking anything of CUDA.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::cli {

struct Gpu {
  std::string name = {};
  std::int64_t memory = 0;  // bytes; 0: not known
};
struct Gpus {
  std::string source = {};   // the library that answered; empty: none did
  std::string driver = {};   // its version, where known
  std::string problem = {};  // why there is no answer
  std::vector<Gpu> list = {};
};
Gpus find_gpus();

}  // namespace rehearse::cli
