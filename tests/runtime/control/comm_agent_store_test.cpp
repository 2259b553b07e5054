// Under torchrun the agent's store serves the master port, and ranks find each other through it.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

TEST(CommAgentStore, RanksMeetThroughTorchrunsStore) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  c10d::TCPStore agent("localhost", options);
  const std::uint16_t port = agent.getPort();
  for (const std::string restart : {"job/0", "job/1"}) {  // a restart must not find the old port
    const auto ended = run_ranks(3, [&](Environment environment) {
      environment.listener = -1;
      environment.agent_store = true;
      environment.master_address = "localhost";
      environment.master_port = port;
      environment.run_id = restart;
      Control control(environment, fast());
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
