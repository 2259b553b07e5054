// Makes the data connections of a rank, with one listening socket and one thread that accepts. A
// connection carries one direction of one channel, after both ends have proven that they belong to
// this start of the run (runtime/control/net/door.h). Channel and sender are part of the proof.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/net/stream.h"

namespace rehearse::runtime {

class Switchboard {
 public:
  /// Every rank makes one at the same point; they exchange their ports through `control`.
  explicit Switchboard(Control& control);
  ~Switchboard();
  Switchboard(const Switchboard&) = delete;
  Switchboard& operator=(const Switchboard&) = delete;

  /// The key of a channel: equal for equal names and members.
  static std::uint64_t key_of(const std::string& channel, const std::vector<Id>& ranks);
  /// A connection on which this rank sends. Throws BackendError with the control plane's verdict,
  /// or one that names channel, rank and address.
  ByteStream connect(std::uint64_t key, const std::string& channel, Id to);
  /// Waits for a connection on which this rank receives from rank `from`. Throws BackendError when
  /// it does not come within the join timeout.
  ByteStream await(std::uint64_t key, const std::string& channel, Id from);
  /// Passes connections of this key, earlier ones too, to `take` until `withdraw` by the same
  /// owner. `take` is called in the accepting thread, or here for those that wait.
  void deliver(std::uint64_t key, const void* owner,
               std::function<void(Id from, ByteStream stream)> take);
  void withdraw(std::uint64_t key, const void* owner);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
