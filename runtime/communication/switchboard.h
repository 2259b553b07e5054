// Makes the data connections of a rank: one listening socket and one thread that accepts. A
// connection carries one direction of one channel; its first bytes say which, from whom, and prove
// with the run's token that it is one of ours.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/socket.h"

namespace rehearse::runtime {

class Switchboard {
 public:
  /// Every rank makes one: they tell each other their ports.
  explicit Switchboard(Control& control);
  ~Switchboard();
  Switchboard(const Switchboard&) = delete;
  Switchboard& operator=(const Switchboard&) = delete;

  /// What both ends call a channel: equal for equal names and members.
  static std::uint64_t key_of(const std::string& channel, const std::vector<Id>& ranks);
  /// A connection that this rank sends on. Throws BackendError with the verdict of the control
  /// plane, or that names rank and address.
  Fd connect(std::uint64_t key, const std::string& channel, Id to);
  /// A connection that this rank receives on, once the other end has made it.
  Fd await(std::uint64_t key, const std::string& channel, Id from);
  /// Connections of this key go to `take`, called in the accepting thread, until the owner
  /// withdraws.
  void deliver(std::uint64_t key, const void* owner, std::function<void(Id from, Fd fd)> take);
  void withdraw(std::uint64_t key, const void* owner);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
