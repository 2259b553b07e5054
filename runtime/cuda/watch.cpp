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

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked != ncclSuccess ? asked : state;
}

}  // namespace

Watch::~Watch() {
  try {
    wait(
        [this] {
          const std::lock_guard lock(calls_);
          return std::ranges::none_of(
              retired_, [](const Entry& e) { return state_of(e.comm) == ncclInProgress; });
        },
        "the end of the communicators");
    if (std::ranges::all_of(retired_,
                            [](const Entry& e) { return state_of(e.comm) == ncclSuccess; }))
      for (const Entry& entry : retired_) ncclCommDestroy(entry.comm);
    else
      abort_all();
  } catch (const std::exception&) {
    // `wait` has aborted them: another rank has failed, and the run ends with its error.
  }
}

void Watch::add(ncclComm_t comm, std::string wire) {
  const std::lock_guard lock(calls_);
  entries_.push_back({comm, std::move(wire)});
}

void Watch::retire(ncclComm_t comm) {
  const std::lock_guard lock(calls_);
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& e) { return e.comm == comm; });
  if (entry == entries_.end()) return;  // aborted before
  if (control_.failure()) return abort_all();
  ncclCommFinalize(comm);
  retired_.push_back(std::move(*entry));
  entries_.erase(entry);
}

void Watch::abort_all() {
  aborted_ = true;
  // In one group: aborting one after the other hangs where members take different orders.
  ncclGroupStart();
  for (const std::vector<Entry>* list : {&entries_, &retired_})
    for (const Entry& entry : *list) ncclCommAbort(entry.comm);
  ncclGroupEnd();
  entries_.clear();
  retired_.clear();
}

void Watch::check() {
  std::optional<std::string> error;
  {
    const std::lock_guard lock(calls_);
    for (const Entry& entry : entries_) {
      const ncclResult_t state = state_of(entry.comm);
      if (state == ncclSuccess || state == ncclInProgress) continue;
      error = fmt::format("{}: NCCL: {}", entry.wire, nccl_text(state, entry.comm));
      break;
    }
    if (!error && !control_.failure() && !aborted_) return;
    if (!aborted_) abort_all();
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
        const std::lock_guard lock(calls_);
        if (!aborted_) abort_all();
      }
      control_.blame(fmt::format("{} has not ended within {:.0f} s", what, seconds_since(start)));
    }
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace rehearse::runtime
