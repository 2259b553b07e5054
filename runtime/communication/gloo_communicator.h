// Communicators over c10d's Gloo process group (run.transport = "gloo"). Gloo's own rings run the
// all-reduces and all-gathers of 32-bit numbers, and move the bytes of our schedules. Our sockets
// run the rest: what Gloo lacks (other algorithms and types, point to point watched by the control
// plane) or does with twice the bytes (reduce-scatter).
#pragma once
#include <memory>

#include "runtime/communication/socket_communicator.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// Makes the Gloo groups of a run. They listen on the address by which other hosts reach this one,
/// or on the network interface that GLOO_SOCKET_IFNAME names.
class Gloo {
 public:
  explicit Gloo(Control& control);
  ~Gloo();
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;
  /// Every member calls it, for equal channels in the same order. The members connect, and wait for
  /// each other, when the first collective that Gloo runs is prepared. This object must outlive the
  /// communicator.
  std::unique_ptr<Communicator> communicator(std::unique_ptr<SocketCommunicator> sockets);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
