#include "runtime/control/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace rehearse::runtime {

SignalQueue::SignalQueue() {
  sigemptyset(&mask_);
  for (const int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&mask_, s);
  sigprocmask(SIG_BLOCK, &mask_, &previous_mask_);
  fd_ = Fd(signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() {
  if (!asked_) sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info = {};
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  asked_ = asked_ || info.ssi_signo != SIGCHLD;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace rehearse::runtime
