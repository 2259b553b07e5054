#include "runtime/control/net/stream.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t head_bytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t seal_bytes = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::size_t length_bytes = sizeof(std::uint32_t);
// Of a record. Long enough that a call of the kernel for each costs little, short enough for the
// second-level cache.
constexpr std::size_t longest_plain = 64 << 10;
constexpr std::size_t longest_sealed = longest_plain + seal_bytes;

static_assert(crypto_secretstream_xchacha20poly1305_KEYBYTES == sizeof(Secret));

unsigned char* as_unsigned(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

struct ByteStream::Sealed {
  StreamKeys keys = {};
  crypto_secretstream_xchacha20poly1305_state out = {}, in = {};
  // The record that is on its way out, and how many bytes of the caller's it holds.
  std::vector<std::byte> sending = {};
  std::size_t sent = 0, taken = 0;
  bool begun = false;  // the header of this direction is made
  // What has come of the next record or header; the record that was opened last.
  std::vector<std::byte> coming = {}, plain = {};
  std::size_t came = 0, given = 0;
  bool opened = false;  // the header of the other direction has come
  bool broken = false;  // the network has changed something: nothing more is believed

  /// How many bytes the next record or header needs, as far as that is known.
  std::size_t needed() const {
    if (!opened) return head_bytes;
    if (came < length_bytes) return length_bytes;
    std::uint32_t length = 0;
    std::memcpy(&length, coming.data(), sizeof length);
    if (length < seal_bytes || length > longest_sealed) return 0;
    return length_bytes + length;
  }

  void seal(std::span<const iovec> parts) {
    sending.clear();
    if (!begun) {
      sending.resize(head_bytes);
      crypto_secretstream_xchacha20poly1305_init_push(&out, as_unsigned(sending.data()),
                                                      keys.send.data());
      begun = true;
    }
    std::vector<std::byte>& text = plain_out;
    text.clear();
    for (const iovec& part : parts) {
      const auto* at = static_cast<const std::byte*>(part.iov_base);
      text.insert(text.end(), at, at + std::min(part.iov_len, longest_plain - text.size()));
    }
    taken = text.size();
    const auto length = static_cast<std::uint32_t>(taken + seal_bytes);
    const std::size_t at = sending.size();
    sending.resize(at + length_bytes + length);
    std::memcpy(sending.data() + at, &length, length_bytes);
    crypto_secretstream_xchacha20poly1305_push(
        &out, as_unsigned(sending.data() + at + length_bytes), nullptr, as_unsigned(text.data()),
        taken, as_unsigned(sending.data() + at), length_bytes,
        crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
    sent = 0;
  }

  /// Opens what has come whole. Returns false when it is not what the other end sealed.
  bool open() {
    came = 0;
    if (!opened) {
      opened = true;
      return crypto_secretstream_xchacha20poly1305_init_pull(&in, as_unsigned(coming.data()),
                                                             keys.receive.data()) == 0;
    }
    plain.resize(coming.size() - length_bytes - seal_bytes);
    given = 0;
    unsigned char tag = 0;
    return crypto_secretstream_xchacha20poly1305_pull(
               &in, as_unsigned(plain.data()), nullptr, &tag,
               as_unsigned(coming.data() + length_bytes), coming.size() - length_bytes,
               as_unsigned(coming.data()), length_bytes) == 0;
  }

  std::vector<std::byte> plain_out = {};
};

ByteStream::ByteStream() = default;
ByteStream::ByteStream(Fd fd, const std::optional<StreamKeys>& keys) : fd_(std::move(fd)) {
  if (keys) {
    sealed_ = std::make_unique<Sealed>();
    sealed_->keys = *keys;
  }
}
ByteStream::ByteStream(ByteStream&& other) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&& other) noexcept = default;
ByteStream::~ByteStream() = default;

ssize_t ByteStream::send(std::span<iovec> parts) {
  if (sealed_) return send_sealed(parts);
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t ByteStream::receive(std::span<iovec> parts) {
  if (sealed_) return receive_sealed(parts);
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
}

ssize_t ByteStream::send(std::span<const std::byte> bytes) {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  return send(std::span(&part, 1));
}

ssize_t ByteStream::receive(std::span<std::byte> bytes) {
  iovec part = {bytes.data(), bytes.size()};
  return receive(std::span(&part, 1));
}

bool ByteStream::has_input() const { return sealed_ && sealed_->given < sealed_->plain.size(); }

ssize_t ByteStream::send_sealed(std::span<const iovec> parts) {
  Sealed& s = *sealed_;
  if (s.sent == s.sending.size()) s.seal(parts);
  while (s.sent < s.sending.size()) {
    const ssize_t n = ::send(fd_.get(), s.sending.data() + s.sent, s.sending.size() - s.sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return -1;
    s.sent += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(s.taken);
}

ssize_t ByteStream::receive_sealed(std::span<const iovec> parts) {
  Sealed& s = *sealed_;
  while (!has_input()) {
    const std::size_t needed = s.broken ? 0 : s.needed();
    if (needed > s.came) {
      s.coming.resize(needed);
      const ssize_t n = ::recv(fd_.get(), s.coming.data() + s.came, needed - s.came, MSG_DONTWAIT);
      if (n <= 0) return n;
      s.came += static_cast<std::size_t>(n);
    }
    if (needed == 0 || (s.came == needed && needed == s.needed() && !s.open())) {
      s.broken = true;
      s.plain.clear();  // nothing of it was sent
      s.given = 0;
      throw BackendError(fmt::format(
          "encrypted bytes from {} are not those that were sent: the network has changed them",
          peer_address(fd_.get())));
    }
  }
  std::size_t moved = 0;
  for (const iovec& part : parts) {
    const std::size_t n = std::min(part.iov_len, s.plain.size() - s.given);
    std::memcpy(part.iov_base, s.plain.data() + s.given, n);
    s.given += n;
    moved += n;
  }
  return static_cast<ssize_t>(moved);
}

}  // namespace rehearse::runtime
