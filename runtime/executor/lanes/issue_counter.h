// How many instances of an op a run has issued, for lanes that wait for them on other threads.
#pragma once
#include <atomic>
#include <cstdint>

namespace rehearse::runtime {

class alignas(64) IssueCounter {
 public:
  /// What a lane saw of the counter: the instances, and in the lowest bits how often lanes that
  /// wait were woken for another reason.
  using Seen = std::int32_t;
  static std::int64_t issued(Seen seen) { return seen / unit; }

  /// No instance has been issued. No lane may wait.
  void restart() { value_.store(0, std::memory_order_relaxed); }
  Seen look() const { return value_.load(std::memory_order_acquire); }
  /// Returns when the counter is not as it was seen: spins a little, then sleeps.
  void wait(Seen seen) const { value_.wait(seen, std::memory_order_acquire); }

  /// One more instance.
  void add() {
    value_.fetch_add(unit, std::memory_order_release);
    value_.notify_all();
  }
  /// Ends all waits, also those of lanes that have looked and are about to wait, however often this
  /// is called meanwhile (less than 16 times).
  void wake() {
    Seen value = value_;
    while (!value_.compare_exchange_weak(value, value - value % unit + (value + 1) % unit)) {
    }
    value_.notify_all();
  }
  /// As many instances as any lane can wait for.
  void release() {
    value_.store(1 << 30, std::memory_order_release);
    value_.notify_all();
  }

 private:
  static constexpr Seen unit = 16;
  std::atomic<Seen> value_ = 0;
};

}  // namespace rehearse::runtime
