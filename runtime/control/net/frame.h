// Messages of the control plane, on a non-blocking socket. A frame is
//
//   [u32 size of the body] [u8 kind] [body: numbers and texts; a text is u32 length, bytes]
//
// All ranks run on little-endian machines. Each kind has a longest body. Connections carry frames
// only after both ends have proven that they belong to the run (runtime/control/net/handshake.h).
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/control/net/secret.h"
#include "runtime/control/net/stream.h"

namespace rehearse::runtime {

enum class MessageKind : std::uint8_t {
  // from a rank to the supervisor
  hello,      // CommHello
  lanes,      // names of the lanes, in the order of later beats
  beat,       // per lane: packed progress, pulses
  set,        // key, value
  report,     // rank, step, values; passed on to rank 0
  stop,       // asks for a vote on the last step
  vote,       // last step begun (i64), free-running (u8)
  fail,       // message
  finish,     // this rank's work has ended
  interrupt,  // signal; the supervisor passes it on, and each process ends at once
  accuse,     // a rank that has sent something broken, and what that was
  // from the supervisor to a rank
  welcome,  // token (Secret), then for each rank: host name, process id, address
  tick,     // heartbeat of the supervisor
  propose,  // asks every rank for its vote
  last,     // the last step
  verdict,  // a rank and its Fate, if that rank is the cause; message. The receiver ends
  release   // every rank has finished
};

/// A message: its kind and its body. `put` appends to the body, `take` reads from its start.
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
  /// Takes values in the order in which they were put. Throws BackendError when the body is
  /// shorter.
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
  /// Takes how many values follow, of at least so many bytes each.
  std::uint32_t take_count(std::size_t bytes_each);
  /// Throws BackendError unless everything was taken.
  void check_end() const;

 private:
  const char* take_bytes(std::size_t n);

  MessageKind kind_;
  std::string body_;
  std::size_t position_ = 0;
};

/// How a rank introduces itself to the supervisor.
struct CommHello {
  std::uint32_t world_size = 0;
  std::string host = {};
  std::int64_t pid = 0;

  Message message() const;
  /// Throws BackendError when it is no hello.
  static CommHello of(Message& message);
};

/// One end of a connection of the control plane.
class FrameSocket {
 public:
  FrameSocket() = default;
  explicit FrameSocket(ByteStream stream) : stream_(std::move(stream)) {}
  int fd() const { return stream_.fd(); }
  explicit operator bool() const { return static_cast<bool>(stream_); }

  void queue(const Message& message);
  /// Sends as much as the kernel takes now. Returns false when the connection has ended.
  bool flush();
  bool has_output() const { return sent_ < output_.size(); }
  /// Reads what has come. Returns false when the connection has ended; earlier messages can still
  /// be taken. Throws BackendError when the network has changed them.
  bool fill();
  /// The next complete message, if there is one. Throws BackendError when the kind is unknown or
  /// the body too long.
  std::optional<Message> next();

 private:
  ByteStream stream_ = {};
  std::string input_ = {}, output_ = {};
  std::size_t taken_ = 0, sent_ = 0;
};

}  // namespace rehearse::runtime
