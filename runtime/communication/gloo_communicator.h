// Communicators over c10d's Gloo process group (run.transport = "gloo"): the library's own rings
// for all-reduces and all-gathers of 32-bit numbers, which move our schedule's bytes. What Gloo
// lacks or does at twice the bytes (reduce-scatter; other algorithms and types; point to point
// under the control plane's watch) is played by our own sockets.
#pragma once
#include <memory>

#include "runtime/communication/socket_communicator.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// Makes a run's Gloo groups. They listen on the address by which other hosts reach this one, or on
/// the interface that GLOO_SOCKET_IFNAME names.
class Gloo {
 public:
  explicit Gloo(Control& control);
  ~Gloo();
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;
  /// Every member calls it, equal channels in the same order. Nothing is connected before a
  /// collective is prepared that Gloo has; then the members wait for each other. Gloo must outlive
  /// it.
  std::unique_ptr<Communicator> communicator(std::unique_ptr<SocketCommunicator> sockets);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
