// The launcher with shell scripts as ranks: variables, exit status, messages, signals, and no
// process left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/control/launch/launcher.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Launched {
  pid_t pid = -1;
  std::string folder = {};

  std::string text(const std::string& file) const {
    std::ifstream in(folder + "/" + file);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  /// Waits until a rank has written the file.
  std::string await(const std::string& file) const {
    for (int i = 0; i < 6000 && text(file).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return text(file);
  }
  int wait() const {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  }
};

/// Launches ranks in a process whose standard error is the file `errors`.
/// `grace`: seconds that the launcher gives the other ranks after one has failed.
Launched start(const RankWork& rank, int nproc, double grace = 30) {
  Launched launched;
  std::string folder = testing::TempDir() + "rehearse_launch_XXXXXX";
  launched.folder = mkdtemp(folder.data());
  launched.pid = fork();
  if (launched.pid == 0) {
    alarm(600);
    const std::string errors = launched.folder + "/errors";
    if (std::freopen(errors.c_str(), "w", stderr) == nullptr ||
        chdir(launched.folder.c_str()) != 0) {
      _exit(99);
    }
    _exit(launch(rank, {.nproc = nproc, .grace = Seconds(grace)}).status);
  }
  return launched;
}

/// The same; each rank runs `script`.
Launched start(const char* script, int nproc, double grace = 30) {
  const auto rank = [script] {
    execlp("sh", "sh", "-c", script, nullptr);
    return 99;
  };
  return start(rank, nproc, grace);
}

int variable(const char* name) { return std::stoi(getenv(name)); }

bool alive(const std::string& pid) { return kill(std::stoi(pid), 0) == 0; }

TEST(CommLauncher, GivesVariables) {
  const Launched run = start(
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR > v$RANK;"
      "echo $MASTER_PORT >> ports",
      3);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.text("v0"), "0 3 0 3 127.0.0.1\n");
  EXPECT_EQ(run.text("v2"), "2 3 2 3 127.0.0.1\n");
  std::istringstream ports(run.text("ports"));
  std::string a;
  std::string b;
  std::string c;
  ports >> a >> b >> c;
  EXPECT_EQ(a, b);
  EXPECT_EQ(b, c);
  EXPECT_GT(std::stoi(a), 0);
}

TEST(CommLauncher, RankZeroInheritsTheSocket) {
  const auto rank = [] {
    const int listener = variable("REHEARSE_LISTENER");
    if (variable("RANK") == 1) return listener;
    return port_of(listener) == variable("MASTER_PORT") ? 0 : 3;
  };
  EXPECT_EQ(start(rank, 2).wait(), 0);
}

TEST(CommLauncher, FirstFailureGivesTheStatusAndItsMessageOnce) {
  const Launched run = start(
      "if [ $RANK = 1 ]; then echo 'rehearse: no data' >&2; exit 2; fi; sleep 0.3;"
      "echo 'rehearse: rank 1 failed' >&2; exit 1",
      4);
  EXPECT_EQ(run.wait(), 2);
  const std::string errors = run.text("errors");
  EXPECT_THAT(errors, HasSubstr("[rank 1] rehearse: no data\n"));
  const auto first = errors.find("rehearse: rank 1 failed");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(errors.find("rehearse: rank 1 failed", first + 1), std::string::npos) << errors;
}

TEST(CommLauncher, ARefusalCountsMoreThanTheFailuresThatItMakes) {
  EXPECT_EQ(start("[ $RANK = 0 ] || exit 1; sleep 0.3; exit 2", 2).wait(), 2);
  EXPECT_EQ(start("[ $RANK = 0 ] || exit 130; sleep 0.3; exit 1", 2).wait(), 1);
}

TEST(CommLauncher, PrefixesWholeLines) {
  const Launched run = start(
      "printf 'hello ' >&2; sleep 0.1; printf 'from %s\\n' $RANK >&2;"
      "printf 'no end %s' $RANK >&2",
      3);
  EXPECT_EQ(run.wait(), 0);
  const std::string errors = run.text("errors");
  EXPECT_THAT(errors, HasSubstr("[rank 1] hello from 1\n"));
  EXPECT_THAT(errors, HasSubstr("[rank 2] hello from 2\n"));
  EXPECT_THAT(errors, HasSubstr("[rank 2] no end 2\n"));
  EXPECT_THAT(errors, HasSubstr("from 0\n"));
  EXPECT_THAT(errors, Not(HasSubstr("[rank 0]")));
}

TEST(CommLauncher, SignalOfARankIsToldAndTheOthersAreEnded) {
  const Launched run =
      start("[ $RANK = 1 ] && kill -SEGV $$; trap '' TERM; while :; do sleep 0.05; done", 3, 0.5);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.text("errors"), HasSubstr("was ended by signal 11 (SEGV)"));
}

/// Whether a process has ended and nobody has asked for its status.
bool awaits_its_parent(const std::string& pid) {
  std::ifstream in("/proc/" + pid.substr(0, pid.find('\n')) + "/stat");
  std::string stat;
  std::getline(in, stat);
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") Z") == 0;
}

TEST(CommLauncher, ASignalIsToldAlsoWhenAnotherRankIsFoundFirst) {
  // Both have ended when the launcher looks: rank 1 by a signal, and rank 0 because of that.
  const Launched run = start(
      "echo $$ > pid$RANK; while [ ! -e go ]; do sleep 0.01; done;"
      "[ $RANK = 1 ] && kill -SEGV $$; exit 1",
      2);
  const std::string first = run.await("pid0");
  const std::string second = run.await("pid1");
  kill(run.pid, SIGSTOP);
  std::ofstream(run.folder + "/go") << "now";
  for (int i = 0; i < 60'000 && !(awaits_its_parent(first) && awaits_its_parent(second)); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(run.pid, SIGCONT);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.text("errors"), HasSubstr("rank 1 (pid " + second.substr(0, second.size() - 1) +
                                            ") was ended by signal 11 (SEGV)"));
}

TEST(CommLauncher, PassesOnInterrupts) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Launched run = start(
        "trap 'echo saved > saved$RANK; exit 130' INT; trap 'exit 143' TERM;"
        "echo ready > ready$RANK; while :; do sleep 0.05; done",
        2);
    run.await("ready0");
    run.await("ready1");
    kill(run.pid, signal);
    EXPECT_EQ(run.wait(), 128 + signal);
    if (signal == SIGINT) {
      EXPECT_EQ(run.text("saved0"), "saved\n");
      EXPECT_EQ(run.text("saved1"), "saved\n");
    }
  }
}

TEST(SoakCommLauncher, ASecondInterruptIsMeantWhenItComesLater) {
  const Launched run =
      start("trap '' INT TERM; echo ready > ready$RANK; while :; do sleep 0.05; done", 2);
  run.await("ready0");
  run.await("ready1");
  kill(run.pid, SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(run.pid, SIGINT);  // the same request
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(waitpid(run.pid, nullptr, WNOHANG), 0);
  kill(run.pid, SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT);
  EXPECT_THAT(run.text("errors"), HasSubstr("interrupted by a second SIGINT"));
}

TEST(CommLauncher, NobodyIsBlamedForAnInterrupt) {
  const Launched run = start(
      "trap '[ $RANK = 0 ] && exit 130; sleep 0.2; echo \"rehearse: rank 0 ended\" >&2; exit 1' "
      "INT;"
      "echo ready > ready$RANK; while :; do sleep 0.05; done",
      2);
  run.await("ready0");
  run.await("ready1");
  kill(run.pid, SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT);
  EXPECT_EQ(run.text("errors"), "rehearse: interrupted\n");
}

TEST(CommLauncher, AFailureAfterAnInterruptIsStillOne) {
  const Launched run = start(
      "trap 'echo \"rehearse: no space left\" >&2; exit 1' INT;"
      "echo ready > ready$RANK; while :; do sleep 0.05; done",
      2);
  run.await("ready0");
  run.await("ready1");
  kill(run.pid, SIGINT);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.text("errors"), HasSubstr("rehearse: no space left\n"));
}

TEST(CommLauncher, NoOrphansWhenTheLauncherIsKilled) {
  const Launched run = start("echo $$ > pid$RANK; exec sleep 200", 2);
  const std::string first = run.await("pid0");
  const std::string second = run.await("pid1");
  kill(run.pid, SIGKILL);
  EXPECT_EQ(run.wait(), 1000 + SIGKILL);
  for (int i = 0; i < 6000 && (alive(first) || alive(second)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(alive(first));
  EXPECT_FALSE(alive(second));
}

/// A fork has all that its parent has; a rank is to have what a new program would have.
TEST(CommLauncher, ARankHasNoDescriptorOfItsLauncherAndShowsNoSecret) {
  const int kept = dup(STDERR_FILENO), marked = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  const auto rank = [&] {
    if (fcntl(kept, F_GETFD) < 0 || fcntl(marked, F_GETFD) >= 0) return 3;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::stoi(entry.path().filename().string());
      const bool of_the_loop = read_symlink(entry.path()).string().starts_with("/proc/");
      const bool mark = (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
      if (mark && fd != variable("REHEARSE_LISTENER") && !of_the_loop) return 4;
    }
    // What others can read of a process is what its program was started with.
    std::stringstream environment;
    environment << std::ifstream("/proc/self/environ").rdbuf();
    if (environment.str().find(getenv("REHEARSE_SECRET")) != std::string::npos) return 5;
    return 0;
  };
  EXPECT_EQ(start(rank, 2).wait(), 0);
  close(kept);
  close(marked);
}

TEST(CommLauncher, ARankHasANameAndWritesNothingOfItsLauncher) {
  const std::string out = testing::TempDir() + "rehearse_launch_out";
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (std::freopen(out.c_str(), "w", stdout) == nullptr) _exit(99);
    std::fputs("launcher\n", stdout);  // stays in the buffer of a file
    const auto rank = [] {
      std::stringstream name;
      name << std::ifstream("/proc/self/comm").rdbuf();
      std::fputs(name.str().c_str(), stdout);
      return 0;
    };
    const int status = launch(rank, {.nproc = 2}).status;
    std::fflush(stdout);
    _exit(status);
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(status, 0);
  std::stringstream said;
  said << std::ifstream(out).rdbuf();
  EXPECT_EQ(said.str(), "launcher\nrehearse r0\n");
}

TEST(CommLauncher, AProgramThatIsNotThere) {
  EXPECT_EQ(start("exec /nonexistent/program", 1).wait(), 127);
}

TEST(CommLauncher, AnErrorOfARankIsAMessage) {
  const Launched run = start([]() -> int { throw BackendError("no data"); }, 2);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.text("errors"), HasSubstr("rehearse: no data\n"));
  EXPECT_THROW(launch([] { return 0; }, {.nproc = 0}), InputError);
}

}  // namespace
}  // namespace rehearse::runtime
