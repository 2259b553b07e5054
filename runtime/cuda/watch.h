// Watches every NCCL communicator of this process while the host waits for the device. An
// asynchronous error, a verdict of the control plane or a device without progress aborts them all
// and becomes a BackendError. A collective whose peer is gone ends only by ncclCommAbort.
#pragma once
#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

class Watch {
 public:
  explicit Watch(Control& control) : control_(control) {}
  /// Waits for the communicators that are retired, as `wait` does, and frees them.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Control& control() { return control_; }
  /// Held while a thread is in a call to NCCL: a thread that aborts must be alone.
  std::recursive_mutex& calls() { return calls_; }

  void add(ncclComm_t comm, std::string wire);
  /// Begins to end a communicator, which waits for its other members. Members may end theirs in
  /// any order, so nothing waits here.
  void retire(ncclComm_t comm);
  /// When a communicator has failed or there is a verdict: aborts all communicators and throws
  /// BackendError.
  void check();
  /// Calls `done` until it returns true, with `check` in between. `what` names in the error what is
  /// waited for. Throws BackendError after ten times the control plane's timeout.
  void wait(const std::function<bool()>& done, const std::string& what);

 private:
  struct Entry {
    ncclComm_t comm = nullptr;
    std::string wire = {};
  };
  void abort_all();  // with the lock held

  Control& control_;
  std::recursive_mutex calls_ = {};
  std::vector<Entry> entries_ = {}, retired_ = {};
  bool aborted_ = false;
};

}  // namespace rehearse::runtime
