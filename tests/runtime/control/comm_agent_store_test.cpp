// Under torchrun the agent's store serves the master port, and ranks find each other through it.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

// torchrun's agent: a process with a store. The store has threads, and a process with threads must
// not fork ranks: a lock that a thread holds at that instant stays locked in the rank.
class Agent {
 public:
  Agent() {
    std::array<int, 2> ends = {};
    if (pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) serve(ends[1]);
    close(ends[1]);
    if (read(ends[0], &port_, sizeof port_) != sizeof port_) throw std::runtime_error("no store");
    close(ends[0]);
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  [[noreturn]] static void serve(int pipe) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.port = 0;
    options.waitWorkers = false;
    const c10d::TCPStore store("localhost", options);
    const std::uint16_t port = store.getPort();
    if (write(pipe, &port, sizeof port) != sizeof port) _exit(1);
    while (true) pause();
  }

  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

TEST(CommAgentStore, RanksMeetThroughTorchrunsStore) {
  const Agent agent;
  for (const std::string restart : {"job/0", "job/1"}) {  // a restart must not find the old port
    const auto ended = run_ranks(3, [&](Environment environment) {
      environment.listener = -1;
      environment.agent_store = true;
      environment.master_address = "localhost";
      environment.master_port = agent.port();
      environment.run_id = restart;
      Control control(environment, patient());
      const auto ranks = control.gather("rank", std::to_string(environment.rank));
      control.finish();
      return ranks[0] + ranks[1] + ranks[2];
    });
    for (const Ended& rank : ended) {
      EXPECT_EQ(rank.status, 0) << rank.text;
      EXPECT_EQ(rank.text, "012");
    }
  }
}

}  // namespace
}  // namespace rehearse::runtime
