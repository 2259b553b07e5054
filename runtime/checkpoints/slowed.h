// Faults that make a disk slow.
#pragma once
#include <chrono>
#include <functional>
#include <thread>

namespace rehearse::runtime {

/// Runs a read or a write, and then waits until it has taken so many times as long.
inline void slowed(double times, const std::function<void()>& io) {
  const auto began = std::chrono::steady_clock::now();
  io();
  if (times > 1)
    std::this_thread::sleep_for(
        (times - 1) * std::chrono::duration<double>(std::chrono::steady_clock::now() - began));
}

}  // namespace rehearse::runtime
