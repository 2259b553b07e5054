#include "runtime/control/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/control/environment.h"
#include "runtime/control/socket.h"
#include "runtime/control/stop_on_signal.h"

namespace rehearse::runtime {
namespace {

struct Child {
  pid_t pid = -1;
  Fd errors = {};  // its standard error; a pipe for rank 0 too, so that errors are shown once
  std::string text = {};
  std::optional<int> status = {};  // exit status, 128 + n after a signal
};

/// SIGINT, SIGTERM and SIGCHLD as a descriptor. Restores the signal mask at the end, except after a
/// request to stop: the same request may come again while this process ends.
class Signals {
 public:
  Signals() {
    sigemptyset(&mask_);
    for (const int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&mask_, s);
    sigprocmask(SIG_BLOCK, &mask_, &before_);
    fd_ = Fd(signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() {
    if (!asked_) sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  /// The next signal that has come; 0: none.
  int next() {
    signalfd_siginfo info = {};
    if (read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
    asked_ = asked_ || info.ssi_signo != SIGCHLD;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t mask_ = {}, before_ = {};
  Fd fd_ = {};
  bool asked_ = false;  // whether SIGINT or SIGTERM has come
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs variables_of(int rank, int nproc, const Fd& listener) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(nproc)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(nproc)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port_of(listener.get()))},
          {"REHEARSE_LISTENER", std::to_string(rank == 0 ? listener.get() : 0)}};
}

/// Runs in the child after fork: becomes the rank, or ends with status 127.
[[noreturn]] void exec_rank(const std::vector<std::string>& arguments, const Pairs& variables,
                            int rank, int errors, int listener, pid_t launcher,
                            const sigset_t& signals) {
  // The launcher may have died before this call; then no signal would come.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  // A process group of its own: Ctrl-C reaches only the launcher, which passes it on once.
  setpgid(0, 0);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  dup2(errors, STDERR_FILENO);
  if (rank == 0) {
    fcntl(listener, F_SETFD, 0);
  } else {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fmt::print(stderr, "cannot start {}: {}\n", arguments[0], error_text(errno));
  _exit(127);
}

class Launch {
 public:
  Launch(const std::vector<std::string>& arguments, const LaunchOptions& options)
      : arguments_(arguments), options_(options) {}

  int run() {
    // Stays open to the end. When rank 0 ends before it serves the socket, ranks that join wait
    // silently until the launcher ends them, and rank 0's error stays the only one shown.
    const Fd listener = listen_on(0);
    for (int rank = 0; rank < options_.nproc; ++rank) start(rank, listener);
    while (!all_ended()) turn();
    for (std::size_t r = 0; r < children_.size(); ++r) drain(r);
    if (interrupted()) {
      // Held errors only say that other ranks ended, which was asked for.
      say(fmt::format("rehearse: interrupted{}\n",
                      at_once_
                          ? fmt::format(" by a second SIG{} before the run had saved and ended",
                                        sigabbrev_np(signal_))
                          : ""));
      return 128 + signal_;
    }
    for (const std::string& line : held_) say(line);
    return gravest();
  }

 private:
  void start(int rank, const Fd& listener) {
    std::array<int, 2> pipe = {};
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) {
      kill_all(SIGKILL);
      throw BackendError(fmt::format("cannot start rank {}: {}", rank, error_text(errno)));
    }
    Child child;
    child.errors = Fd(pipe[0]);
    const Fd write_end(pipe[1]);
    fcntl(pipe[0], F_SETFL, O_NONBLOCK);
    const Pairs variables = variables_of(rank, options_.nproc, listener);
    const pid_t launcher = getpid();
    child.pid = fork();
    if (child.pid == 0) {
      exec_rank(arguments_, variables, rank, pipe[1], listener.get(), launcher, signals_.before());
    }
    if (child.pid < 0) {
      kill_all(SIGKILL);
      throw BackendError(fmt::format("cannot start rank {}: {}", rank, error_text(errno)));
    }
    children_.push_back(std::move(child));
  }

  bool all_ended() const {
    return std::ranges::all_of(children_, [](const Child& c) { return c.status.has_value(); });
  }

  /// The exit status of the run. A rank that refuses (2) makes others fail (1), and some may have
  /// ended in order (128 + n) before.
  int gravest() const {
    const auto grave = [](const Child& c) { return *c.status >= 128 ? 0 : *c.status; };
    const auto worst = std::ranges::max_element(children_, {}, grave);
    if (grave(*worst) > 0) return grave(*worst);
    const auto status = [](const Child& c) { return *c.status; };
    return std::ranges::max(children_ | std::views::transform(status));
  }

  void kill_all(int signal) {
    for (const Child& c : children_) {
      if (!c.status) kill(c.pid, signal);
    }
  }

  void turn() {
    std::vector<pollfd> wait = {{signals_.fd(), POLLIN, 0}};
    for (const Child& c : children_) wait.push_back({c.errors.get(), POLLIN, 0});
    poll(wait.data(), wait.size(), deadline_ ? milliseconds_until(*deadline_) : -1);
    for (std::size_t r = 0; r < children_.size(); ++r) {
      if (wait[r + 1].revents != 0) drain(r);
    }
    while (const int signal = signals_.next()) {
      if (signal != SIGCHLD) pass_on(signal);
    }
    reap();
    if (deadline_ && Clock::now() >= *deadline_) {
      kill_all(SIGKILL);
      deadline_.reset();
    }
  }

  /// Whether the run ended because of a signal to this process.
  bool interrupted() const {
    return at_once_ || (signal_ != 0 && std::ranges::any_of(children_, [this](const Child& c) {
                          return *c.status == 128 + signal_;
                        }));
  }

  /// Passes the first signal to the ranks, which may take long to save and end. Kills them on a
  /// second request.
  void pass_on(int signal) {
    if (signal_ == 0) {
      signal_ = signal;
      signalled_at_ = Clock::now();
      kill_all(signal);
    } else if (Clock::now() - signalled_at_ >= to_duration(second_request_after)) {
      at_once_ = true;
      kill_all(SIGKILL);
    }
  }

  void expire() {
    if (!deadline_) deadline_ = Clock::now() + to_duration(options_.grace);
  }

  void reap() {
    for (std::size_t r = 0; r < children_.size(); ++r) {
      Child& c = children_[r];
      int status = 0;
      if (c.status || waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
      c.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      drain(r);
      if (*c.status == 0) continue;
      if (WIFSIGNALED(status) && signal_ == 0) {
        // Not a signal that the launcher passed on: the run has failed.
        c.status = 1;
        if (!failed_) {
          say(fmt::format("rehearse: rank {} (pid {}) was ended by signal {} ({})\n", r, c.pid,
                          WTERMSIG(status), sigabbrev_np(WTERMSIG(status))));
        }
      }
      failed_ = true;
      expire();
    }
  }

  /// Passes on the complete lines of a rank's standard error, and at its end the rest.
  void drain(std::size_t rank) {
    Child& c = children_[rank];
    if (!c.errors) return;
    std::array<char, 4096> piece = {};
    ssize_t n = 0;
    while ((n = read(c.errors.get(), piece.data(), piece.size())) > 0) {
      c.text.append(piece.data(), static_cast<std::size_t>(n));
    }
    const bool end = n == 0 || (errno != EAGAIN && errno != EINTR);
    if (end) c.errors = Fd();
    if (rank == 0) {
      // A progress line has no newline, so rank 0's text is shown as it comes, except the start of
      // an error line that another rank may have shown already.
      const auto line = c.text.rfind('\n') + 1;
      const bool error = c.text.compare(line, error_mark.size(), error_mark) == 0;
      emit(rank, error && !end ? std::exchange(c.text, c.text.substr(line)).substr(0, line)
                               : std::exchange(c.text, {}));
      return;
    }
    std::size_t newline = 0;
    while ((newline = c.text.find('\n')) != std::string::npos) {
      emit(rank, c.text.substr(0, newline + 1));
      c.text.erase(0, newline + 1);
    }
    if (end && !c.text.empty()) emit(rank, std::exchange(c.text, {}) + "\n");
  }

  /// The control plane's verdict makes every rank write the same error; it is shown once.
  void emit(std::size_t rank, const std::string& text) {
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
      const std::string line = text.substr(begin, end - begin);
      begin = end;
      const bool error = line.starts_with(error_mark);
      if (error && !said_.insert(line).second) continue;
      const std::string text = rank == 0 ? line : fmt::format("[rank {}] {}", rank, line);
      if (error && signal_ != 0)
        held_.push_back(text);
      else
        say(text);
    }
  }

  static void say(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  static constexpr std::string_view error_mark = "rehearse: ";

  const std::vector<std::string>& arguments_;
  LaunchOptions options_;
  Signals signals_ = {};
  std::vector<Child> children_ = {};
  std::optional<Deadline> deadline_ = {};
  bool failed_ = false;
  int signal_ = 0;  // the first signal to this process; 0: none
  Deadline signalled_at_ = {};
  bool at_once_ = false;  // a second request came
  std::set<std::string> said_ = {};
  std::vector<std::string> held_ = {};  // errors written after the signal, not shown yet
};

}  // namespace

int launch(const std::vector<std::string>& arguments, const LaunchOptions& options) {
  if (options.nproc < 1) {
    throw InputError(fmt::format("--nproc {}: at least one process is needed", options.nproc));
  }
  return Launch(arguments, options).run();
}

bool launched() { return process_variable("REHEARSE_LISTENER").has_value(); }

}  // namespace rehearse::runtime
