// The sockets of a communicator.
#include "tests/devices/emulated/comm.h"

#include <poll.h>
#include <sys/un.h>

#include <chrono>

namespace {

int connect_to(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

int listen_at(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 64) == 0)
    return fd;
  close(fd);
  return -1;
}

/// A socket to each other member: a member listens for those of higher ranks. Member 0 has listened
/// since it made the id; the others' sockets come into being in this call, so whoever connects
/// tries until they are there.
void connect_members(EmulatedComm* comm, const std::string& path, int listener) {
  const auto own = [&](int rank) { return path + "." + std::to_string(rank); };
  if (comm->rank != 0) listener = listen_at(own(comm->rank));
  bool good = listener >= 0;
  for (int peer = 0; good && peer < comm->rank; ++peer) {
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 60'000; ++tries) {
      fd = connect_to(peer == 0 ? path : own(peer));
      if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    good = fd >= 0 && send(fd, &comm->rank, sizeof comm->rank, MSG_NOSIGNAL) == sizeof comm->rank;
    comm->peers[static_cast<std::size_t>(peer)] = fd;
  }
  for (int left = comm->ranks - 1 - comm->rank; good && left > 0; --left) {
    pollfd waiting{listener, POLLIN, 0};
    int peer = -1;
    const int fd =
        poll(&waiting, 1, 60'000) == 1 ? accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    good = fd >= 0 && recv(fd, &peer, sizeof peer, MSG_WAITALL) == sizeof peer;
    if (good) comm->peers[static_cast<std::size_t>(peer)] = fd;
  }
  if (listener >= 0) close(listener);
  unlink(comm->rank == 0 ? path.c_str() : own(comm->rank).c_str());
  rmdir(path.substr(0, path.rfind('/')).c_str());  // the last member removes it
  comm->state = good ? ncclSuccess : ncclSystemError;
}
