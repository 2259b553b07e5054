// Messages of the control plane: a kind and a body of integers, numbers and texts, in frames of
// {u32 size, u8 kind, body} on a non-blocking socket. All ranks of a run are little-endian machines
// with the same build, which the first message checks.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/control/socket.h"

namespace rehearse::runtime {

enum class MessageKind : std::uint8_t {
  // from a rank to the supervisor
  hello,      // version, rank, world size, host, pid
  lanes,      // names of the lanes in later beats
  beat,       // per lane: packed progress, pulses
  set,        // key, value
  report,     // rank, step, values; passed on to rank 0
  stop,       // please hold a vote on the last step
  vote,       // last step begun, whether free running
  fail,       // message
  finish,     // has ended its work
  interrupt,  // signal; the supervisor tells every rank, and each ends at once
  // from the supervisor to a rank
  welcome,  // token, then per rank: host, pid, address
  tick,     // the supervisor lives
  propose,  // vote
  last,     // the last step
  verdict,  // rank to blame, message
  release   // every rank has finished
};

class Message {
 public:
  explicit Message(MessageKind kind, std::string body = {}) : kind_(kind), body_(std::move(body)) {}
  MessageKind kind() const { return kind_; }
  const std::string& body() const { return body_; }

  template <class T>
  Message& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Message& put_text(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    body_ += text;
    return *this;
  }
  /// Values in the order they were put. Throws BackendError when the body is shorter.
  template <class T>
  T take() {
    T value = {};
    std::memcpy(&value, take_bytes(sizeof value), sizeof value);
    return value;
  }
  std::string take_text() {
    const auto size = take<std::uint32_t>();
    return {take_bytes(size), size};
  }

 private:
  const char* take_bytes(std::size_t n);

  MessageKind kind_;
  std::string body_;
  std::size_t position_ = 0;
};

/// One end of a connection of the control plane.
class FrameSocket {
 public:
  FrameSocket() = default;
  explicit FrameSocket(Fd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

  void queue(const Message& message);
  /// Sends what the kernel takes. False when the connection ended.
  bool flush();
  bool has_output() const { return sent_ < output_.size(); }
  /// Reads what is there. False when the connection ended; what came before it can still be taken.
  bool fill();
  /// The next complete message. Throws BackendError on a frame that is none of ours.
  std::optional<Message> next();

 private:
  Fd fd_;
  std::string input_ = {}, output_ = {};
  std::size_t taken_ = 0, sent_ = 0;
};

}  // namespace rehearse::runtime
