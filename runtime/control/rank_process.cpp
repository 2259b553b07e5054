#include "runtime/control/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/control/agent.h"

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

/// Runs in the child after fork: becomes the rank, or ends with status 127.
[[noreturn]] void exec_rank(const RankStart& start, const Pairs& variables, int errors, int line,
                            pid_t launcher) {
  // The launcher may have died before this call; then no signal would come.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);
  sigprocmask(SIG_SETMASK, &start.signals, nullptr);
  // A process group of its own: Ctrl-C reaches only the launcher, which passes it on once.
  setpgid(0, 0);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  if (line >= 0) {
    const int output = dup(STDOUT_FILENO);
    for (const int fd : {line, start.listener}) fcntl(fd, F_SETFD, 0);
    const std::string value = Agent::value(line, start.listener, output, start.stands_by);
    setenv(Agent::variable, value.c_str(), 1);
  }
  dup2(errors, STDERR_FILENO);
  if (start.rank == 0 && !start.stands_by) {
    fcntl(start.listener, F_SETFD, 0);
  } else {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  std::vector<char*> argv;
  for (const std::string& word : start.arguments) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fmt::print(stderr, "cannot start {}: {}\n", start.arguments[0], error_text(errno));
  _exit(127);
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
  const pid_t launcher = getpid();
  process.pid = fork();
  if (process.pid == 0) exec_rank(start, variables, pipe[1], line.get(), launcher);
  if (process.pid < 0) throw cannot();
  return process;
}

}  // namespace rehearse::runtime
