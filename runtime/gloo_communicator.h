// Communicators over c10d's Gloo process group: the library's own all-reduce, all-gather and
// broadcast, which move the schedule's bytes. What Gloo lacks or does at twice the bytes
// (reduce-scatter; other algorithms, roots and dtypes; point to point under the control plane's
// watch) is played by our own sockets.
#pragma once
#include <memory>

#include "runtime/control.h"
#include "runtime/socket_communicator.h"

namespace rehearse {

/// The rendezvous of a run's Gloo groups. Every rank makes one: rank 0 serves the store.
class Gloo {
 public:
  explicit Gloo(Control& control);
  ~Gloo();
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;
  /// All members call it together. Throws BackendError.
  std::unique_ptr<Communicator> communicator(std::unique_ptr<SocketCommunicator> sockets);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse
