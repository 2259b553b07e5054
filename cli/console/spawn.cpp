#include "cli/console/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "engine/base/child.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"

extern char** environ;

namespace rehearse::cli {
namespace {

/// The program and its first argument: an interpreter's script, a batch system's verb.
std::string shown(const std::vector<std::string>& arguments) {
  const std::size_t few = std::min<std::size_t>(arguments.size(), 2);
  return fmt::format("{}{}", fmt::join(arguments.begin(), arguments.begin() + few, " "),
                     few < arguments.size() ? " ..." : "");
}

/// Reads what a child writes until it ends or `limit` has passed, and then kills it. Leaves what
/// waitpid says in `out.status`.
void read_to_end(int from, Finished& out, pid_t child, ProcessGroup group, Seconds limit) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit.value);
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(
                                                      end - std::chrono::steady_clock::now()));
  };
  std::array<char, 4096> block{};
  constexpr std::chrono::milliseconds most{60000}, nap{5};
  while (left().count() > 0) {
    pollfd output{.fd = from, .events = POLLIN, .revents = 0};
    if (poll(&output, 1, static_cast<int>(std::min(left(), most).count())) <= 0) continue;
    const ssize_t n = read(from, block.data(), block.size());
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) out.output.append(block.data(), static_cast<std::size_t>(n));
  }
  // A program may close its output and go on.
  while (left().count() > 0) {
    const pid_t ended = waitpid(child, &out.status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return;
    std::this_thread::sleep_for(nap);
  }
  out.timed_out = true;
  kill(group == ProcessGroup::own ? -child : child, SIGKILL);
  out.status = wait_for(child);
}

}  // namespace

Finished run_program(const std::vector<std::string>& arguments, bool with_errors,
                     ProcessGroup group, std::optional<Seconds> patience) {
  const Seconds limit = patience ? *patience : patience_with_programs();
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
  read_to_end(ends[0], out, child, group, limit);
  close(ends[0]);
  out.status = exit_status(out.status);
  if (out.timed_out && !patience)
    throw BackendError(
        fmt::format("{} had not ended after {} s and was stopped; the environment variable "
                    "REHEARSE_PROGRAM_TIMEOUT sets another limit, as in 1h",
                    shown(arguments), limit.value));
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
