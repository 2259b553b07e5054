// Real processes for tests: forks the ranks of a run, gives each its Environment, and collects what
// they return.
#pragma once
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/control/launch/environment.h"

namespace rehearse::runtime {

/// The run.device of tests that leave it open: ctest runs them on the CPU and on the device queues.
inline std::string test_device() {
  const char* const name = std::getenv("REHEARSE_TEST_DEVICE");
  return name == nullptr ? "auto" : name;
}

struct Outcome {
  int status = -1;        // exit status; 128 + n after signal n; -1: ended by the test's timeout
  std::string text = {};  // what the rank returned, or its error's message
};

/// Runs `work` in `ranks` forked processes. They exit without running static destructors. After
/// `timeout`, kills those that still run. `meanwhile` runs in this process, on a thread of its own.
inline std::vector<Outcome> run_ranks(
    int ranks, const std::function<std::string(const Environment&)>& work,
    std::chrono::seconds timeout = std::chrono::seconds(600),
    const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 128) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no port for the test");

  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe for the test");
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      Environment environment{.rank = rank,
                              .world_size = ranks,
                              .local_rank = rank,
                              .local_world_size = ranks,
                              .master_port = ntohs(address.sin_port),
                              .launcher = "rehearse",
                              .listener = rank == 0 ? listener : -1};
      if (rank != 0) close(listener);
      std::string said;
      int status = 0;
      try {
        said = work(environment);
      } catch (const std::exception& error) {
        said = error.what();
        status = 1;
      }
      for (std::size_t at = 0; at < said.size();) {
        const ssize_t count = write(ends[1], said.data() + at, said.size() - at);
        if (count <= 0) break;
        at += static_cast<std::size_t>(count);
      }
      _exit(status);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  close(listener);
  std::thread other;
  if (meanwhile) other = std::thread([&] { meanwhile(pids); });

  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<Outcome> outcomes(ranks);
  bool late = false;
  for (int rank = 0; rank < ranks; ++rank) {
    char buffer[65536];
    while (!late) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd waiting{.fd = pipes[rank], .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
        late = true;
        break;
      }
      const ssize_t count = read(pipes[rank], buffer, sizeof buffer);
      if (count <= 0) break;
      outcomes[rank].text.append(buffer, static_cast<std::size_t>(count));
    }
    if (late)
      for (int other_rank = rank; other_rank < ranks; ++other_rank) kill(pids[other_rank], SIGKILL);
    int status = 0;
    waitpid(pids[rank], &status, 0);
    close(pipes[rank]);
    outcomes[rank].status = late                ? -1
                            : WIFEXITED(status) ? WEXITSTATUS(status)
                                                : 128 + WTERMSIG(status);
  }
  if (other.joinable()) other.join();
  return outcomes;
}

}  // namespace rehearse::runtime
