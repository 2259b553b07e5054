// SIGINT, SIGTERM and SIGCHLD as a descriptor.
#pragma once
#include <csignal>

#include "runtime/control/socket.h"

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
  /// The signal mask of this process before.
  const sigset_t& before() const { return before_; }
  /// The next signal that has come; 0: none.
  int next();

 private:
  sigset_t mask_ = {}, before_ = {};
  Fd fd_ = {};
  bool asked_ = false;  // whether SIGINT or SIGTERM has come
};

}  // namespace rehearse::runtime
