#include "runtime/control/frame.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t header_bytes = sizeof(std::uint32_t) + 1;
// Far more than any message needs. A longer one comes from another program.
constexpr std::uint32_t longest_body = 1U << 26;

}  // namespace

const char* Message::take_bytes(std::size_t n) {
  if (body_.size() - position_ < n) {
    throw BackendError("a message of the control plane is shorter than it should be");
  }
  const char* at = body_.data() + position_;
  position_ += n;
  return at;
}

Message CommHello::message() const {
  return Message(MessageKind::hello)
      .put(version)
      .put(rank)
      .put(world_size)
      .put(start)
      .put_text(host)
      .put(pid);
}

CommHello CommHello::of(Message& message) {
  if (message.kind() != MessageKind::hello) throw BackendError("no hello");
  CommHello hello{.version = message.take<std::uint32_t>()};
  if (hello.version != control_version) return hello;
  hello.rank = message.take<std::uint32_t>();
  hello.world_size = message.take<std::uint32_t>();
  hello.start = message.take<std::uint32_t>();
  hello.host = message.take_text();
  hello.pid = message.take<std::int64_t>();
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
    const ssize_t n = ::send(fd_.get(), output_.data() + sent_, output_.size() - sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
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
    const ssize_t n = ::recv(fd_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
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
  if (size > longest_body || kind > static_cast<std::uint8_t>(MessageKind::release)) {
    throw BackendError("a connection to the control plane speaks another protocol");
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
