// Looks after every NCCL communicator of this process while the host waits for the device: an
// asynchronous error, a verdict of the control plane or a device that does not move aborts them all
// (ncclCommAbort: a collective whose peer is gone never ends by itself) and becomes a BackendError.
#pragma once
#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/socket.h"

namespace rehearse::runtime {

class Watch {
 public:
  explicit Watch(Control& control) : control_(control) {}

  Control& control() { return control_; }
  void add(ncclComm_t comm, std::string channel);
  /// Ends a communicator: in an orderly way, or at once when something has failed.
  void remove(ncclComm_t comm);
  /// Throws BackendError after aborting every communicator when one has failed or there is a
  /// verdict.
  void check();
  /// Calls `done` until it is true, checking meanwhile. `what` is waited for, in the error.
  void wait(const std::function<bool()>& done, const std::string& what);

 private:
  struct Entry {
    ncclComm_t comm = nullptr;
    std::string channel = {};
  };
  void abort_all();  // with the mutex held

  Control& control_;
  std::mutex mutex_ = {};
  std::vector<Entry> entries_ = {};
  bool aborted_ = false;
};

}  // namespace rehearse::runtime
