// TCP sockets for the control plane and the data connections: owned descriptors, deadlines on every
// call that can block, and errors that name the address and what was tried.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/base/units.h"

namespace rehearse::runtime {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
inline Clock::duration to_duration(Seconds s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s.value));
}
inline double seconds_since(Deadline start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
/// Milliseconds for poll(2), at least 0 and at most `at_most`.
int milliseconds_until(Deadline deadline, int at_most = 1'000'000);

/// Owns a file descriptor; -1: none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Text of an errno value.
std::string error_text(int error);

/// The name of this machine.
std::string host_name();

inline const std::string loopback = "127.0.0.1";
/// Listens on a port (0: any free port) of a numeric address of this host. Throws BackendError that
/// names the port when it is in use, and the address when it is not of this host.
Fd listen_on(std::uint16_t port, const std::string& address = loopback);
/// The port that a socket listens on.
std::uint16_t port_of(int listener);
/// The next connection: TCP_NODELAY, non-blocking. An empty Fd when there is none.
Fd accept_from(int listener);
/// Connects, and tries again while nobody listens there, until the deadline or until the descriptor
/// `stop` (-1: none) becomes readable. The socket has TCP_NODELAY and is non-blocking. Throws
/// BackendError that names host and port.
Fd connect_to(const std::string& host, std::uint16_t port, Deadline deadline, int stop = -1);
/// Numeric address of the other end; empty when the connection has ended.
std::string peer_address(int fd);
/// Numeric address of this end, also of a socket that listens.
std::string local_address(int fd);

/// Sends or receives all of `data` on a non-blocking socket. Returns false at the deadline or when
/// the connection ends, and when the descriptor `stop` (-1: none) becomes readable.
bool send_all(int fd, std::span<const std::byte> data, Deadline deadline);
bool recv_all(int fd, std::span<std::byte> data, Deadline deadline, int stop = -1);

/// A descriptor (eventfd) that poll sees as readable from `notify` until `clear`.
Fd make_signal();
void notify(int fd) noexcept;  // async-signal-safe
void clear(int fd) noexcept;   // not readable until the next notify

}  // namespace rehearse::runtime
