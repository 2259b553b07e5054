#include "runtime/control/launch/stop_on_signal.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "runtime/control/membership/agent.h"

namespace rehearse::runtime {
namespace {

// The handler's state: only lock-free atomics, since it may interrupt any code.
std::atomic<Control*> aim = nullptr;
std::atomic<int> first_signal = 0;
std::atomic<std::int64_t> first_at = 0;
std::atomic<bool> drain = false;

std::int64_t nanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int signal) {
  Control* const control = aim.load();
  const std::int64_t now = nanoseconds();
  std::int64_t before = 0;
  if (first_at.compare_exchange_strong(before, now)) {
    first_signal = signal;
    if (control != nullptr) control->request_stop();
  } else if (static_cast<double>(now - before) >= 1e9 * second_request_after.value) {
    if (control == nullptr) _exit(128 + signal);
    control->interrupt(signal);
  }
}

void on_drain(int /*signal*/) {
  Control* const control = aim.load();
  drain = true;
  if (control != nullptr) control->request_stop();
}

}  // namespace

StopOnSignal::StopOnSignal(Control& control) {
  first_signal = 0;
  first_at = 0;
  drain = false;
  aim = &control;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  action.sa_handler = on_drain;
  sigaction(drain_signal, &action, &old_drain_);
}

StopOnSignal::~StopOnSignal() {
  aim = nullptr;
  sigaction(drain_signal, &old_drain_, nullptr);
  // The same request may come a second time while the process ends.
  if (first_at != 0) return;
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

int StopOnSignal::first() const { return first_signal; }
bool StopOnSignal::drained() { return drain; }

}  // namespace rehearse::runtime
