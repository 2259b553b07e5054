#include "cli/console/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "engine/base/errors.h"

extern char** environ;

namespace rehearse::cli {

Finished run_program(const std::vector<std::string>& arguments, bool with_errors,
                     ProcessGroup group, Seconds patience) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw BackendError(fmt::format("pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (with_errors) posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (!with_errors)
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  if (group == ProcessGroup::own) posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, &how, argv.data(), environ);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Finished out;
  if (error != 0) {
    close(ends[0]);
    out.status = 127;
    out.output = fmt::format("{}: {}", arguments[0], std::strerror(error));
    return out;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience.value);
  std::array<char, 4096> block{};
  while (true) {
    if (patience.value > 0) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd output{.fd = ends[0], .events = POLLIN, .revents = 0};
      const int ready =
          poll(&output, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000)));
      if (ready <= 0) {
        if (left.count() > 0) continue;
        out.timed_out = true;
        kill(group == ProcessGroup::own ? -child : child, SIGKILL);
        break;
      }
    }
    const ssize_t n = read(ends[0], block.data(), block.size());
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) out.output.append(block.data(), static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  out.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return out;
}

std::string quoted(const std::string& word) {
  constexpr const char* plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace rehearse::cli
