// A listening socket of a rank. Only connections that have proven that they belong to the run
// (runtime/control/net/handshake.h) pass. A stranger costs a few bytes for a few seconds, whatever
// it sends: nothing but one frame of fixed length is read, within 5 s, of at most 64 connections at
// a time. When another one comes, the oldest goes: a rank proves itself at once and, when it was
// unlucky, comes again.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/control/net/handshake.h"

namespace rehearse::runtime {

class Door {
 public:
  static constexpr std::size_t most_waiting = 64;
  static constexpr Seconds patience = Seconds(5);

  /// `admitted`: what a caller must be for, and which rank and start it must call. Its `from` and
  /// `channel` do not matter.
  Door(Fd listener, const Secret& secret, const Caller& admitted)
      : listener_(std::move(listener)), secret_(secret), admitted_(admitted) {}

  int listener() const { return listener_.get(); }
  /// Adds what poll should wait for.
  void add_to(std::vector<pollfd>& wait) const;
  /// Milliseconds for poll until a connection has waited for too long; -1: none waits.
  int milliseconds() const;
  /// Accepts, reads and answers what has come, and passes on who has proven itself. Never blocks.
  void turn(const std::function<void(const Caller&, ByteStream)>& take);

 private:
  struct Waiting {
    Fd fd = {};
    std::string address = {};  // of the other end
    Challenge challenge = {};
    std::array<std::byte, sizeof(Answer)> answer = {};
    std::size_t bytes = 0;  // of the answer, that have come
    Deadline until = {};
  };
  enum class Progress { none, ended, accepted };

  void greet(Fd fd);
  Progress read(Waiting& caller);
  Progress judge(Waiting& caller);
  void refuse(const Waiting& caller, const std::string& why);

  Fd listener_;
  Secret secret_;
  Caller admitted_;
  std::deque<Waiting> waiting_ = {};
  std::set<std::string> told_ = {};  // refusals in the log
};

}  // namespace rehearse::runtime
