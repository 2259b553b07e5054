// The device of tests of the CUDA plug-in, and code that runs as the body of an op on it.
#pragma once
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#include "runtime/device/accelerator.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

/// The emulation, or the device that REHEARSE_TEST_DEVICE names.
inline std::string test_gpu() {
  const char* const name = std::getenv("REHEARSE_TEST_DEVICE");
  return name == nullptr || std::string(name) == "queues" ? "emulated" : name;
}

inline void as_body(Device& device, const std::function<void()>& work) {
  std::exception_ptr error;
  std::function<void()> body = [&] {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
  };
  const auto stream = device.stream("test");
  stream->launch(
      {.run = [](void* self, const Body&) { (*static_cast<std::function<void()>*>(self))(); },
       .self = &body,
       .lane = 0,
       .op = 0,
       .step = 1});
  stream->synchronize();
  if (error) std::rethrow_exception(error);
}

}  // namespace rehearse::runtime
