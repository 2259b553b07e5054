#include "runtime/control/net/frame.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <span>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t header_bytes = sizeof(std::uint32_t) + 1;

/// Bytes; far more than any message needs that may be long.
std::uint32_t longest_body(MessageKind kind) {
  constexpr std::uint32_t kilo = 1U << 10, mega = 1U << 20;
  switch (kind) {
    case MessageKind::hello:
      return 4 * kilo;
    case MessageKind::lanes:
    case MessageKind::beat:
      return 64 * kilo;
    case MessageKind::fail:
    case MessageKind::accuse:
    case MessageKind::verdict:
    case MessageKind::report:
      return mega;
    case MessageKind::set:
    case MessageKind::welcome:
      return 64 * mega;
    case MessageKind::vote:
      return sizeof(std::int64_t) + 1;
    case MessageKind::last:
      return sizeof(std::int64_t);
    case MessageKind::interrupt:
      return sizeof(std::int32_t);
    case MessageKind::stop:
    case MessageKind::finish:
    case MessageKind::tick:
    case MessageKind::propose:
    case MessageKind::release:
      break;
  }
  return 0;
}

}  // namespace

const char* Message::take_bytes(std::size_t n) {
  if (body_.size() - position_ < n) {
    throw BackendError("a message of the control plane is shorter than it should be");
  }
  const char* at = body_.data() + position_;
  position_ += n;
  return at;
}

std::uint32_t Message::take_count(std::size_t bytes_each) {
  const auto count = take<std::uint32_t>();
  if (count > (body_.size() - position_) / bytes_each)
    throw BackendError("a message of the control plane is shorter than it should be");
  return count;
}

void Message::check_end() const {
  if (position_ != body_.size())
    throw BackendError("a message of the control plane is longer than it should be");
}

Message CommHello::message() const {
  return Message(MessageKind::hello).put(world_size).put_text(host).put(pid);
}

CommHello CommHello::of(Message& message) {
  if (message.kind() != MessageKind::hello) throw BackendError("no hello");
  CommHello hello{.world_size = message.take<std::uint32_t>()};
  hello.host = message.take_text();
  hello.pid = message.take<std::int64_t>();
  message.check_end();
  if (hello.pid <= 0) throw BackendError("a process without a number");
  return hello;
}

void FrameSocket::queue(const Message& message) {
  const auto size = static_cast<std::uint32_t>(message.body().size());
  output_.append(reinterpret_cast<const char*>(&size), sizeof size);
  output_.push_back(static_cast<char>(message.kind()));
  output_ += message.body();
}

bool FrameSocket::flush() {
  while (has_output()) {
    const ssize_t n = stream_.send(std::as_bytes(std::span(output_).subspan(sent_)));
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    sent_ += static_cast<std::size_t>(n);
  }
  output_.clear();
  sent_ = 0;
  return true;
}

bool FrameSocket::fill() {
  std::array<char, 16384> piece = {};
  for (;;) {
    const ssize_t n = stream_.receive(std::as_writable_bytes(std::span(piece)));
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    input_.append(piece.data(), static_cast<std::size_t>(n));
  }
}

std::optional<Message> FrameSocket::next() {
  if (input_.size() - taken_ < header_bytes) return std::nullopt;
  std::uint32_t size = 0;
  std::memcpy(&size, input_.data() + taken_, sizeof size);
  const auto kind = static_cast<std::uint8_t>(input_[taken_ + sizeof size]);
  if (kind > static_cast<std::uint8_t>(MessageKind::release) ||
      size > longest_body(static_cast<MessageKind>(kind))) {
    throw BackendError(fmt::format("no message has the kind {} and {} bytes", kind, size));
  }
  if (input_.size() - taken_ < header_bytes + size) return std::nullopt;
  Message message(static_cast<MessageKind>(kind), input_.substr(taken_ + header_bytes, size));
  taken_ += header_bytes + size;
  if (taken_ == input_.size()) {
    input_.clear();
    taken_ = 0;
  }
  return message;
}

}  // namespace rehearse::runtime
