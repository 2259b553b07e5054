#include "tests/runtime/comm_ranks.h"

#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>
#include <utility>

#include "runtime/control/net/socket.h"

namespace rehearse::runtime {
namespace {

[[noreturn]] void be_rank(int rank, int n, Fd listener, std::uint16_t port, int pipe,
                          const std::function<std::string(const Environment&)>& body,
                          const RunOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(static_cast<unsigned>(options.limit));
  // LibTorch replaces the parent's thread pool in the first call that asks for it. Two threads that
  // do so at once may find none ("Invalid thread pool!"), so the first call comes here.
  at::set_num_threads(1);
  Environment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = n;
  environment.master_port = port;
  if (rank == 0) environment.listener = listener.release();
  listener = Fd();
  int status = 0;
  std::string text;
  try {
    text = body(environment);
  } catch (const std::exception& error) {
    text = error.what();
    status = 1;
  }
  [[maybe_unused]] const ssize_t written = write(pipe, text.data(), text.size());
  _exit(status);
}

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 4096> piece = {};
  ssize_t n = 0;
  while ((n = read(fd, piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

std::vector<Ended> run_ranks(int n, const std::function<std::string(const Environment&)>& body,
                             const RunOptions& options) {
  Fd listener = listen_on(0);
  const std::uint16_t port = port_of(listener.get());
  // Without rank 0, no process may listen on the port.
  if (options.absent == 0) listener = Fd();
  std::vector<pid_t> pids;
  std::vector<Fd> pipes;
  for (int rank = 0; rank < n; ++rank) {
    std::array<int, 2> ends = {};
    if (pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    pipes.emplace_back(ends[0]);
    const Fd write_end(ends[1]);
    const pid_t pid = rank == options.absent ? -1 : fork();
    if (pid == 0) be_rank(rank, n, std::move(listener), port, ends[1], body, options);
    pids.push_back(pid);
  }
  listener = Fd();
  std::vector<Ended> ended(static_cast<std::size_t>(n));
  const auto wait_for = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    int status = 0;
    if (pids[r] < 0) return;
    // A process writes less than the capacity of a pipe, so it can end before anybody reads.
    waitpid(pids[r], &status, 0);
    ended[r] = {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
                read_to_end(pipes[r].get())};
  };
  if (options.pause > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (const pid_t pid : pids) kill(pid, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::duration<double>(options.pause));
    for (const pid_t pid : pids) kill(pid, SIGCONT);
  }
  for (int rank = 0; rank < n; ++rank) {
    if (rank != options.hostage) wait_for(rank);
  }
  if (options.hostage >= 0) {
    kill(pids[static_cast<std::size_t>(options.hostage)], SIGKILL);
    wait_for(options.hostage);
  }
  return ended;
}

ControlOptions patient() {
  ControlOptions options;
  options.timeout = options.join = Seconds(300);
  options.heartbeat = Seconds(0.1);
  options.exit_after = Seconds(120);
  return options;
}

ControlOptions impatient() {
  ControlOptions options = patient();
  options.timeout = Seconds(2);
  options.join = Seconds(60);
  options.exit_after = Seconds(1);
  return options;
}

}  // namespace rehearse::runtime
