// A communicator of the emulated NCCL: a Unix socket for each pair of members.
#pragma once
#include <nccl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// What a call is. Both ends of a message must agree.
struct Call {
  std::int32_t kind = 0, type = 0, root = 0, number = 0;
  std::int64_t count = 0;
  friend bool operator==(const Call&, const Call&) = default;
};

struct EmulatedComm {
  int rank = 0, ranks = 1;
  std::vector<int> peers = {};  // sockets, by member; -1: this one
  std::atomic<ncclResult_t> state = ncclInProgress;
  std::string error = {};
  std::int32_t number = 0;                             // of collectives
  std::vector<std::int32_t> sent = {}, received = {};  // messages from member to member
  std::thread connecting = {};
  // Messages from this member to itself.
  std::mutex own_lock = {};
  std::condition_variable own_came = {};
  std::deque<std::vector<char>> own = {};

  ~EmulatedComm() {
    if (connecting.joinable()) connecting.join();
    for (const int peer : peers)
      if (peer >= 0) close(peer);
  }

  ncclResult_t fail(ncclResult_t result, const std::string& what) {
    error = what;
    return state = result;
  }

  ncclResult_t put(int to, const Call& call, const void* data, std::size_t bytes) {
    if (to == rank) {
      const std::lock_guard lock(own_lock);
      own.emplace_back(static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
      own_came.notify_all();
      return ncclSuccess;
    }
    const auto write_all = [&](const void* from, std::size_t n) {
      for (const char* at = static_cast<const char*>(from); n > 0;) {
        const ssize_t done = send(peers[static_cast<std::size_t>(to)], at, n, MSG_NOSIGNAL);
        if (done <= 0) return false;
        at += done;
        n -= static_cast<std::size_t>(done);
      }
      return true;
    };
    if (write_all(&call, sizeof call) && write_all(data, bytes)) return ncclSuccess;
    return fail(ncclRemoteError, "member " + std::to_string(to) + " is gone");
  }

  ncclResult_t get(int from, const Call& call, void* data, std::size_t bytes) {
    if (from == rank) {
      std::unique_lock lock(own_lock);
      own_came.wait(lock, [&] { return !own.empty(); });
      std::memcpy(data, own.front().data(), bytes);
      own.pop_front();
      return ncclSuccess;
    }
    const auto read_all = [&](void* to, std::size_t n) {
      for (char* at = static_cast<char*>(to); n > 0;) {
        const ssize_t done = recv(peers[static_cast<std::size_t>(from)], at, n, 0);
        if (done <= 0) return false;
        at += done;
        n -= static_cast<std::size_t>(done);
      }
      return true;
    };
    Call other;
    if (!read_all(&other, sizeof other))
      return fail(ncclRemoteError, "member " + std::to_string(from) + " is gone");
    if (other != call)
      return fail(ncclInvalidUsage, "member " + std::to_string(from) + " made another call");
    if (read_all(data, bytes)) return ncclSuccess;
    return fail(ncclRemoteError, "member " + std::to_string(from) + " is gone");
  }
};

/// A socket that listens at this path; -1: none.
int listen_at(const std::string& path);
/// Connects a communicator to its other members; `listener`: member 0's socket, which listens at
/// `path` since it made the id. Sets the communicator's state.
void connect_members(EmulatedComm* comm, const std::string& path, int listener);
