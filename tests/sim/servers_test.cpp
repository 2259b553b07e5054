// Tests of programs whose order depends on arrival times: mailboxes, arrival lanes and free-running
// roles.
#include <gtest/gtest.h>

#include <map>

#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

plan::Plan servers(const char* method, int workers, int shards, int staleness = 0) {
  return {.method = method,
          .mesh = {.dp = workers, .servers = shards},
          .schedule = {.global_batch = workers, .staleness = staleness},
          .exchange = {.bucket = Bytes(2e5)}};
}

/// The iterations that each worker (role 0) has computed at the end, by place.
std::map<Id, int> iterations_of(const Bench& bench, const Times& times) {
  std::map<Id, int> iterations;
  for (const auto& [key, time] : times) {
    const auto& [role, op, step, place] = key;
    if (role == 0 &&
        std::holds_alternative<program::Compute>(bench.linked.program.roles[0].ops[op].work))
      iterations[place] = std::max(iterations[place], step + 1);
  }
  return iterations;
}

TEST(Servers, AsynchronousWorkersDoNotWaitForASlowOne) {
  for (const char* method : {"ps-async", "byteps-async"}) {
    const Bench bench(servers(method, 4, 2), switched(6), "gpt-demo");
    const cluster::Disturbance slow = {.stragglers = {{.rank = 0, .factor = 5}}};
    const auto run = bench.sim({}, slow, 30);
    const auto iterations = iterations_of(bench, run.times);
    for (const Id worker : {1U, 2U, 3U})
      EXPECT_GE(iterations.at(worker), 2.5 * iterations.at(0)) << method;
  }
}

// An answer lies in the server's outbox while it is under way, so a worker that gets its answers
// over a slow link holds nobody up.
TEST(Servers, ASlowWayToAWorkerIsItsOwn) {
  const cluster::Cluster cluster = switched(6);
  std::vector<double> slow(cluster.links().size(), 1);
  slow[cluster.way(4, 0, 1).links.back()] = 1000;
  for (const char* method : {"ps-async", "byteps-async"}) {
    const Bench bench(servers(method, 4, 2), cluster, "gpt-demo", nullptr, slow);
    for (const Times& times : {bench.sim({.slow = slow}, {}, 30).times, bench.dry({}, 30)}) {
      const auto iterations = iterations_of(bench, times);
      for (const Id worker : {1U, 2U, 3U})
        EXPECT_GE(iterations.at(worker), 3 * iterations.at(0)) << method;
    }
  }
}

// Workers that do nothing but push and wait are customers of two stations, the server's link in and
// its link out, which are shared fairly. Once they are out of step, n of them take (n + 1) / n
// times what one direction takes (the closed network of queues of Gordon and Newell, 1967, in which
// only the means of service times count). From the same moment on and without jitter they would
// push together and be answered together for ever.
TEST(Servers, WorkersOnFairlySharedLinksTakeWhatQueuesTake) {
  const double bandwidth = 1e8;
  const int workers = 8, steps = 300;
  const Bench bench(servers("ps-async", workers, 1), switched(1 + workers, 1, bandwidth),
                    "gpt-demo");
  const program::Role& server = bench.linked.program.roles.back();
  double bytes = 0;  // that all workers push in a step
  for (Id op = 0; op < server.ops.size(); ++op)
    if (std::holds_alternative<program::Take>(server.ops[op].work))
      bytes += static_cast<double>(bench.linked.roles.back().ops[op].bytes);
  const double one_way = steps * bytes / bandwidth;
  const cluster::Disturbance jitter = {.seed = 3, .link_sigma = 0.1};
  EXPECT_NEAR(bench.sim({}, jitter, steps).simulated.seconds / one_way, 9.0 / 8, 0.04);
  EXPECT_GT(bench.sim({}, {}, steps).simulated.seconds / one_way, 1.5);
  // In the dry run pushes do not meet, and answers leave one after the other.
  EXPECT_NEAR(last_end(bench.dry({}, steps)) / one_way, 1, 0.04);
}

TEST(Servers, SynchronousWorkersDo) {
  const Bench bench(servers("ps-sync", 4, 2), switched(6), "gpt-demo");
  const cluster::Disturbance slow = {.stragglers = {{.rank = 0, .factor = 5}}};
  EXPECT_GT(bench.sim({}, slow).simulated.seconds, 2 * bench.sim({}).simulated.seconds);
  for (const auto& [worker, count] : iterations_of(bench, bench.sim({}, slow).times))
    EXPECT_EQ(count, 3);
}

TEST(Servers, WorkersShareTheServersLink) {
  // The dry run gives every message the whole link.
  const Bench bench(servers("ps-async", 8, 1), switched(9, 1, 1e9), "gpt-demo");
  EXPECT_GT(bench.sim({}).simulated.seconds, 1.2 * last_end(bench.dry()));
}

TEST(Servers, AReplyNeedsAMessage) {
  const Bench bench(servers("ps-async", 2, 1), switched(3));
  link::LinkedProgram hasty = bench.linked;
  for (std::vector<Id>& lane : hasty.roles[1].lane_ops) std::reverse(lane.begin(), lane.end());
  try {
    isolated([&] {
      execution::Recording ignored;
      simulate(hasty, bench.costs, bench.cluster, cluster::Disturber({}, 3), 1, ignored);
      return std::vector<double>{};
    });
    FAIL() << "nothing was thrown";
  } catch (const ProgramError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2 replies before any message came"),
              std::string::npos)
        << error.what();
  }
}

// On cables that are faster than its memory, a server takes as long as it adds: of each byte that
// comes it reads the byte and the sum, and writes the sum.
TEST(Servers, AddAtTheRateOfTheirMemory) {
  plan::Plan plan = servers("byteps", 3, 1);
  plan.exchange.machines.local_ranks = 1;
  const Bench bench(plan, meshed(4, 1e14, 0), "gpt-demo");
  const cluster::DeviceKind& kind = bench.cluster.kinds()[0];
  const program::Role& server = bench.linked.program.roles.back();
  int seen = 0;
  for (const SimOptions options :
       {SimOptions{.bypass = false}, SimOptions{.fidelity = Fidelity::chunk, .bypass = false},
        SimOptions{}}) {
    const Times times = bench.sim(options).times;
    EXPECT_LE(difference(bench.dry(), times), 1e-6);
    for (const auto& [key, time] : times) {
      const auto& [role, op, step, place] = key;
      if (role != 1 || server.lanes[server.ops[op].lane].name != "push") continue;
      const auto bytes = static_cast<double>(bench.linked.roles[role].ops[op].bytes);
      const double expected =
          3 * 3 * bytes / (kind.memory_bandwidth.value * kind.memory_efficiency);
      EXPECT_NEAR((time.second - time.first) / expected, 1, 1e-6);
      ++seen;
    }
  }
  EXPECT_GT(seen, 30);
}

TEST(Servers, TheSameSeedGivesTheSameBytes) {
  const cluster::Disturbance jitter = {.seed = 5, .compute_sigma = 0.2, .link_sigma = 0.2};
  for (const char* method : {"ps-sync", "ps-ssp", "ps-async", "byteps-async"}) {
    const Bench bench(servers(method, 4, 2, std::string(method) == "ps-ssp" ? 1 : 0), switched(6));
    EXPECT_EQ(bench.sim({}, jitter).raw, bench.sim({}, jitter).raw) << method;
  }
}

}  // namespace
}  // namespace rehearse::sim
