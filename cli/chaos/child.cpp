#include "cli/chaos/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "engine/base/child.h"
#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

/// Runs in the child after fork.
[[noreturn]] void become(const std::vector<char*>& argv, int said) {
  setpgid(0, 0);  // Ctrl-C ends the campaign, and with it this process
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(said, STDOUT_FILENO);
  dup2(said, STDERR_FILENO);
  execvp(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments, const std::string& said) {
  const int file = open(said.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) throw BackendError(fmt::format("{}: {}", said, std::strerror(errno)));
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_ = fork_child();
  if (pid_ == 0) become(argv, file);
  const int error = errno;
  close(file);
  if (pid_ < 0)
    throw BackendError(fmt::format("cannot start {}: {}", arguments[0], std::strerror(error)));
}

Child::~Child() {
  if (poll()) return;
  kill(pid_, SIGKILL);
  wait_for(pid_);
}

std::optional<int> Child::poll() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = exit_status(status);
  return status_;
}

std::optional<int> Child::wait(std::chrono::duration<double> patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!poll() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return poll();
}

}  // namespace rehearse::cli
