// The bytes of a connection after the handshake, in the clear or encrypted (run.encrypt).
// Everything that ranks read from each other and write to each other passes here. Encrypted, a
// direction is a header, then records (libsodium's secretstream, XChaCha20-Poly1305):
//
//   [24 bytes] [u32 length of the sealed bytes] [sealed bytes] [u32 ...
//
// The length is authenticated with the bytes. A record that was changed, left out, repeated or
// moved ends the connection with an error.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/control/net/secret.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

/// The keys of one connection, one for each direction.
struct StreamKeys {
  Secret send = {}, receive = {};
};

class ByteStream {
 public:
  ByteStream();  // none
  /// A non-blocking socket; in the clear without keys.
  explicit ByteStream(Fd fd, const std::optional<StreamKeys>& keys = {});
  ByteStream(ByteStream&& other) noexcept;
  ByteStream& operator=(ByteStream&& other) noexcept;
  ~ByteStream();

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

  /// As sendmsg and recvmsg that do not block: the number of bytes that were taken or have come; 0
  /// from `receive`: the other end has closed; -1: see errno. After EAGAIN `send` wants the same
  /// bytes again, more may follow them. `receive` throws BackendError when the network has changed
  /// the bytes.
  ssize_t send(std::span<iovec> parts);
  ssize_t receive(std::span<iovec> parts);
  ssize_t send(std::span<const std::byte> bytes);
  ssize_t receive(std::span<std::byte> bytes);
  /// Whether `receive` has bytes that poll does not know of.
  bool has_input() const;

 private:
  struct Sealed;
  ssize_t send_sealed(std::span<const iovec> parts);
  ssize_t receive_sealed(std::span<const iovec> parts);

  Fd fd_ = {};
  std::unique_ptr<Sealed> sealed_;
};

}  // namespace rehearse::runtime
