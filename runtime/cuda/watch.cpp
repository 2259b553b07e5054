#include "runtime/cuda/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/cuda/check.h"

namespace rehearse::runtime {
namespace {

// Spins this long before it sleeps, so that short waits stay short.
constexpr auto spin = std::chrono::microseconds(200);
constexpr auto nap = std::chrono::microseconds(50);
// Checks rarely, because asking NCCL costs more than asking CUDA.
constexpr auto check_every = std::chrono::milliseconds(10);

}  // namespace

void Watch::add(ncclComm_t comm, std::string channel) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({comm, std::move(channel)});
}

void Watch::remove(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& e) { return e.comm == comm; });
  if (entry == entries_.end()) return;  // aborted before
  entries_.erase(entry);
  if (control_.failure()) {
    ncclCommAbort(comm);
    return;
  }
  // ncclCommFinalize waits for the other members; on a non-blocking communicator the result must be
  // polled.
  ncclResult_t state = ncclCommFinalize(comm);
  const auto deadline = Clock::now() + to_duration(control_.options().timeout);
  while (state == ncclInProgress && Clock::now() < deadline && !control_.failure()) {
    std::this_thread::sleep_for(nap);
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
  }
  if (state == ncclSuccess) {
    ncclCommDestroy(comm);
  } else {
    ncclCommAbort(comm);
  }
}

void Watch::abort_all() {
  aborted_ = true;
  for (const Entry& entry : entries_) ncclCommAbort(entry.comm);
  entries_.clear();
}

void Watch::check() {
  std::optional<std::string> error;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(entry.comm, &state);
      const ncclResult_t result = asked != ncclSuccess ? asked : state;
      if (result == ncclSuccess || result == ncclInProgress) continue;
      error = fmt::format("channel {}: NCCL: {}", entry.channel, nccl_text(result, entry.comm));
      break;
    }
    if (!error && !control_.failure() && !aborted_) return;
    abort_all();
  }
  // A dead peer breaks NCCL's connections first; the control plane then says which rank it was.
  control_.blame(error.value_or("NCCL's communicators were aborted"));
}

void Watch::wait(const std::function<bool()>& done, const std::string& what) {
  const auto start = Clock::now();
  const auto patience = 10 * to_duration(control_.options().timeout);
  auto next_check = start + check_every;
  while (!done()) {
    const auto now = Clock::now();
    if (now - start < spin) continue;
    if (now >= next_check) {
      check();
      next_check = now + check_every;
    }
    if (now - start > patience) {
      {
        const std::lock_guard lock(mutex_);
        abort_all();
      }
      control_.blame(fmt::format("{} has not ended within {:.0f} s", what, seconds_since(start)));
    }
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace rehearse::runtime
