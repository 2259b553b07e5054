// Code of tests that runs as the body of an op: where it may use the device's memory.
#pragma once
#include <functional>
#include <utility>

#include "runtime/profiling/timed_stream.h"

namespace rehearse::runtime {

/// Returns when the device has ended it. Rethrows what it throws.
inline void as_body(Device& device, std::function<void()> work) {
  TimedStream stream(device);
  stream.run(std::move(work));
  stream.finish();
}

}  // namespace rehearse::runtime
