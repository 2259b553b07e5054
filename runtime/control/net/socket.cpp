#include "runtime/control/net/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string numeric(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, host.data(),
                  host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return host.data();
}

/// Returns false at the deadline, and when `stop` became readable.
bool wait_for(int fd, short events, Deadline deadline, int stop = -1) {
  std::array<pollfd, 2> wait = {{{fd, events, 0}, {stop, POLLIN, 0}}};
  int ready = 0;
  do {
    ready = poll(wait.data(), wait.size(), milliseconds_until(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && wait[1].revents == 0;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    throw BackendError(
        fmt::format("cannot resolve the host name \"{}\": {}", host, gai_strerror(error)));
  }
  return {list, freeaddrinfo};
}

/// One attempt at one address. Returns 0 or an errno value; ECANCELED when `stop` became readable.
int try_connect(const addrinfo& address, Deadline deadline, int stop, Fd& out) {
  Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  set_no_delay(fd.get());
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    std::array<pollfd, 2> wait = {{{fd.get(), POLLOUT, 0}, {stop, POLLIN, 0}}};
    int ready = 0;
    do {
      ready = poll(wait.data(), wait.size(), milliseconds_until(deadline));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return ETIMEDOUT;
    if (wait[1].revents != 0) return ECANCELED;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  out = std::move(fd);
  return 0;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

int milliseconds_until(Deadline deadline, int at_most) {
  // Rounded up, so that a wait does not end just before its deadline.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, at_most));
}

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string error_text(int error) { return std::generic_category().message(error); }

Fd listen_on(std::uint16_t port, const std::string& address) {
  const AddressList at = resolve(address, port);
  Fd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0 || listen(fd.get(), 1024) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      throw BackendError(
          fmt::format("port {} is in use by another program: choose another MASTER_PORT", port));
    }
    throw BackendError(
        fmt::format("cannot listen on port {} of {}: {}", port, address, error_text(error)));
  }
  return fd;
}

std::uint16_t port_of(int listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Fd accept_from(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) set_no_delay(fd.get());
  return fd;
}

Fd connect_to(const std::string& host, std::uint16_t port, Deadline deadline, int stop) {
  const auto start = Clock::now();
  int error = ETIMEDOUT;
  for (int pause_ms = 5;; pause_ms = std::min(2 * pause_ms, 500)) {
    const AddressList addresses = resolve(host, port);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      Fd fd;
      error = try_connect(*a, deadline, stop, fd);
      if (error == 0) return fd;
      if (error == ECANCELED) break;
    }
    pollfd wait = {stop, POLLIN, 0};
    if (error != ECANCELED && Clock::now() < deadline &&
        poll(&wait, 1, milliseconds_until(deadline, pause_ms)) <= 0) {
      continue;
    }
    throw BackendError(fmt::format("no connection to {}:{} within {:.1f} s: {}", host, port,
                                   seconds_since(start), error_text(error)));
  }
}

std::string peer_address(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address);
}

std::string local_address(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address);
}

bool send_all(int fd, std::span<const std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t n = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      data = data.subspan(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(fd, POLLOUT, deadline)) return false;
  }
  return true;
}

bool recv_all(int fd, std::span<std::byte> data, Deadline deadline, int stop) {
  while (!data.empty()) {
    const ssize_t n = ::recv(fd, data.data(), data.size(), MSG_DONTWAIT);
    if (n > 0) {
      data = data.subspan(static_cast<std::size_t>(n));
      continue;
    }
    if (n == 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(fd, POLLIN, deadline, stop)) return false;
  }
  return true;
}

Fd make_signal() { return Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void notify(int fd) noexcept {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof one);
  errno = saved;
}

void clear(int fd) noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd, &count, sizeof count);
}

}  // namespace rehearse::runtime
