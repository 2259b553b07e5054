// The device of tests of the CUDA plug-in.
#pragma once
#include <cstdlib>
#include <string>

namespace rehearse::runtime {

/// The emulation, or the device that REHEARSE_TEST_DEVICE names.
inline std::string test_gpu() {
  const char* const name = std::getenv("REHEARSE_TEST_DEVICE");
  return name == nullptr || std::string(name) == "queues" ? "emulated" : name;
}

}  // namespace rehearse::runtime
