// Faults that make a disk slow.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace rehearse::runtime {

/// Runs a read or a write, and then waits until it has taken so many times as long. Calls `alive`,
/// if there is one, again and again while it waits.
inline void slowed(double times, const std::function<void()>& io,
                   const std::function<void()>& alive = {}) {
  using Clock = std::chrono::steady_clock;
  constexpr auto nap = std::chrono::milliseconds(100);
  const auto began = Clock::now();
  io();
  if (times <= 1) return;
  const auto end = began + std::chrono::duration_cast<Clock::duration>(
                               times * std::chrono::duration<double>(Clock::now() - began));
  while (Clock::now() < end) {
    std::this_thread::sleep_until(std::min<Clock::time_point>(end, Clock::now() + nap));
    if (alive) alive();
  }
}

}  // namespace rehearse::runtime
