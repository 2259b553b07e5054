#include "runtime/control/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <utility>
#include <vector>

#include "engine/base/child.h"
#include "engine/base/errors.h"
#include "runtime/control/membership/agent.h"

namespace rehearse::runtime {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs variables_of(const RankStart& start) {
  const int rank = start.rank;
  const std::string ranks = std::to_string(start.world_size);
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", ranks},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", ranks},
          {"MASTER_ADDR", local_address(start.listener)},
          {"MASTER_PORT", std::to_string(port_of(start.listener))},
          {"REHEARSE_LISTENER", std::to_string(rank == 0 ? start.listener : 0)},
          {secret_variable, to_hex(start.secret)}};
}

/// Closes what a new program would not get, but for `keep`.
void close_marked(std::initializer_list<int> keep) {
  std::vector<int> marked;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0 && std::ranges::find(keep, fd) == keep.end())
      marked.push_back(fd);
  }
  for (const int fd : marked) close(fd);
}

/// Runs in the child after fork: is the rank, and ends.
[[noreturn]] void be_rank(const RankStart& start, const Pairs& variables, int errors, int line) {
  sigprocmask(SIG_SETMASK, &start.signals, nullptr);
  // A process group of its own: Ctrl-C reaches only the launcher, which passes it on once.
  setpgid(0, 0);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  int output = -1;
  if (line >= 0) {
    output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    const std::string value = Agent::value(line, start.listener, output, start.stands_by);
    setenv(Agent::variable, value.c_str(), 1);
  }
  dup2(errors, STDERR_FILENO);
  const bool first = start.rank == 0 && !start.stands_by;
  if (!first) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  const int listener = first || line >= 0 ? start.listener : -1;
  close_marked({line, listener, output});
  name_process(start.stands_by ? -1 : start.rank);
  int status = 1;
  try {
    status = start.work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "rehearse: {}\n", error.what());
  }
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

RankProcess start_process(const RankStart& start) {
  const auto cannot = [&] {
    return BackendError(fmt::format("cannot start rank {}: {}", start.rank, error_text(errno)));
  };
  std::array<int, 2> pipe = {};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) throw cannot();
  RankProcess process{.rank = start.stands_by ? -1 : start.rank, .errors = Fd(pipe[0])};
  const Fd write_end(pipe[1]);
  fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  Fd line;
  if (start.agent || start.stands_by) {
    std::array<int, 2> ends = {};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) throw cannot();
    process.agent = Fd(ends[0]);
    line = Fd(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  const Pairs variables = variables_of(start);
  process.pid = fork_child();
  if (process.pid == 0) be_rank(start, variables, pipe[1], line.get());
  if (process.pid < 0) throw cannot();
  return process;
}

void name_process(int rank) {
  const std::string name = rank < 0 ? "rehearse spare" : fmt::format("rehearse r{}", rank);
  prctl(PR_SET_NAME, name.c_str());
}

}  // namespace rehearse::runtime
