#include "sim/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/child.h"
#include "engine/base/errors.h"

namespace rehearse::sim {
namespace {

using Clock = std::chrono::steady_clock;

/// How a child ended: the first byte of what the child returns.
enum class Ending : char { result = 'r', input = 'i', program = 'p', backend = 'b' };

[[noreturn]] void fail(const char* what) {
  throw BackendError(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Owns a file descriptor.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  void reset() { *this = File(-1); }

 private:
  int fd_ = -1;
};

File memory_file(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) fail("no memory for a simulation's results");
  return File(fd);
}

std::string contents(const File& file) {
  std::string text;
  char buffer[65536];
  off_t offset = 0;
  for (;;) {
    const ssize_t n = pread(file.fd(), buffer, sizeof buffer, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("reading a simulation's results");
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
    offset += n;
  }
}

bool write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

class Child {
 public:
  Child(int number, const std::function<std::string(int)>& work)
      : number_(number), result_(memory_file("result")), errors_(memory_file("errors")) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("no pipe for a simulation");
    alive_ = File(ends[0]);
    File held(ends[1]);
    pid_ = fork_child();
    if (pid_ < 0) fail("no process for a simulation");
    if (pid_ == 0) {
      // A terminal's Ctrl-C reaches children too. The parent decides; if it ends, so does the
      // child.
      static_cast<void>(std::signal(SIGINT, SIG_IGN));
      dup2(errors_.fd(), STDERR_FILENO);
      // _exit(), not exit(): the child must not run the parent's exit handlers or flush its
      // buffers.
      _exit(write_all(result_.fd(), run(work)) ? 0 : 1);
    }
  }
  Child(Child&&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    reap();
  }

  int number() const { return number_; }
  int alive() const { return alive_.fd(); }  // becomes readable when the child ends
  Clock::time_point begin() const { return begin_; }

  /// Waits for the child's end and returns its result, or throws its error.
  std::string finish() {
    const int status = reap();
    const std::string text = contents(result_);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || text.empty())
      throw BackendError(
          fmt::format("simulation {} {}{}", number_, describe(status), last_words()));
    std::string rest = text.substr(1);
    switch (static_cast<Ending>(text.front())) {
      case Ending::result:
        return rest;
      case Ending::input:
        throw InputError(rest);
      case Ending::program:
        throw ProgramError(rest);
      case Ending::backend:
        break;
    }
    throw BackendError(rest);
  }
  [[noreturn]] void too_late(double timeout) {
    throw BackendError(fmt::format("simulation {} took longer than its timeout of {} s{}", number_,
                                   timeout, last_words()));
  }

 private:
  std::string run(const std::function<std::string(int)>& work) const {
    auto tell = [](Ending ending, const std::string& text) {
      return static_cast<char>(ending) + text;
    };
    try {
      return tell(Ending::result, work(number_));
    } catch (const InputError& error) {
      return tell(Ending::input, error.what());
    } catch (const ProgramError& error) {
      return tell(Ending::program, error.what());
    } catch (const std::exception& error) {
      return tell(Ending::backend, error.what());
    }
  }
  int reap() { return wait_for(std::exchange(pid_, 0)); }
  static std::string describe(int status) {
    if (WIFSIGNALED(status))
      return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
    return fmt::format("ended with status {} and no result", WEXITSTATUS(status));
  }
  std::string last_words() const {
    constexpr std::size_t most_shown = 2000;
    std::string text = contents(errors_);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.empty()) return "";
    if (text.size() > most_shown) text = "..." + text.substr(text.size() - most_shown);
    return ". It said:\n" + text;
  }

  int number_ = 0;
  File result_, errors_, alive_ = File(-1);
  pid_t pid_ = 0;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& work,
                                      const ProcessOptions& options) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto jobs = static_cast<std::size_t>(options.jobs > 0 ? options.jobs : cores);
  std::vector<std::string> results(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<Child>> children;
  // Children start in the order of their numbers. So after a failure only children with lower
  // numbers matter, and the others are ended.
  std::optional<std::pair<int, std::exception_ptr>> failure;
  int begun = 0;
  int done = 0;
  constexpr int between_checks = 100;  // milliseconds
  while ((begun < count && !failure) || !children.empty()) {
    if (options.check) options.check();
    while (begun < count && !failure && children.size() < jobs)
      children.push_back(std::make_unique<Child>(begun++, work));
    std::vector<pollfd> polled;
    int wait = options.check ? between_checks : -1;
    for (const auto& child : children) {
      polled.push_back({.fd = child->alive(), .events = POLLIN, .revents = 0});
      if (options.timeout <= 0) continue;
      const std::chrono::duration<double> spent = Clock::now() - child->begin();
      const double left = std::max(0.0, options.timeout - spent.count());
      const int ms = static_cast<int>(std::min(left, 1e6) * 1000) + 1;
      wait = wait < 0 ? ms : std::min(wait, ms);
    }
    if (poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR)
      fail("waiting for simulations");
    for (std::size_t i = children.size(); i-- > 0;) {
      Child& child = *children[i];
      const std::chrono::duration<double> spent = Clock::now() - child.begin();
      const bool late = options.timeout > 0 && spent.count() > options.timeout;
      const bool ended = polled[i].revents != 0;
      if (!ended && !late) continue;
      std::optional<std::string> failed;
      try {
        if (!ended) child.too_late(options.timeout);
        results[static_cast<std::size_t>(child.number())] = child.finish();
      } catch (const std::runtime_error& error) {
        failed = error.what();
        if (!options.failure && (!failure || child.number() < failure->first))
          failure = {child.number(), std::current_exception()};
      }
      // Not in the try block: what the caller's functions throw ends the call.
      if (failed && options.failure) options.failure(child.number(), *failed);
      if (!failed && options.result)
        options.result(child.number(),
                       std::exchange(results[static_cast<std::size_t>(child.number())], {}));
      if (!failed || options.failure) {
        ++done;
        if (options.progress) options.progress(done);
      }
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (failure)
      std::erase_if(children, [&](const auto& child) { return child->number() > failure->first; });
  }
  if (failure) std::rethrow_exception(failure->second);
  return results;
}

}  // namespace rehearse::sim
