// SIGINT, SIGTERM and SIGCHLD as a descriptor.
#pragma once
#include <csignal>

#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

/// Restores the signal mask at the end, except after a request to stop: the same request may come
/// again while this process ends.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// The signal mask that this process had before the queue blocked its signals.
  const sigset_t& previous_mask() const { return previous_mask_; }
  /// The next signal that has come; 0: none.
  int next();

 private:
  sigset_t mask_ = {}, previous_mask_ = {};
  Fd fd_ = {};
  bool asked_ = false;  // whether SIGINT or SIGTERM has come
};

}  // namespace rehearse::runtime
