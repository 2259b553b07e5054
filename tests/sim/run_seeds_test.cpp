// Tests of several seeds in parallel: there is one entry per seed, in order, and the results do not
// depend on how many run at a time.
#include "sim/run_seeds.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

class Seeds : public testing::Test {
 protected:
  std::vector<SeedRun> run(SeedOptions options) const {
    options.samples_per_step = 8;
    options.steps = {.warm_up = 1, .steady = 4};
    return run_seeds(bench_.linked, bench_.model, bench_.cluster, bench_.costs,
                     {.seed = 11, .compute_sigma = 0.1}, options);
  }
  Bench bench_ = Bench({.method = "ddp", .mesh = {.dp = 8}, .schedule = {.global_batch = 8}},
                       cluster::load_cluster("paper"));
};

TEST_F(Seeds, AreIndependentOfWhatRunsAtATime) {
  const auto one = run({.seeds = 4, .processes = {.jobs = 1}});
  const auto four = run({.seeds = 4, .processes = {.jobs = 4}});
  ASSERT_EQ(one.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(one[i].metrics.step_times, four[i].metrics.step_times);
    EXPECT_EQ(one[i].simulated.seconds, four[i].simulated.seconds);
    EXPECT_EQ(one[i].metrics.step_times.size(), 4U);
    EXPECT_GT(one[i].simulated.flows, 0);
  }
  EXPECT_NE(one[0].metrics.step_times, one[1].metrics.step_times);
}

TEST_F(Seeds, MetricsCrossUnchanged) {
  // The metrics that a child returns equal the metrics of a run with the same seed.
  const execution::Metrics crossed = run({.seeds = 1})[0].metrics;
  const std::vector<double> here = isolated([&] {
    execution::MetricsSink sink(bench_.linked, bench_.model, bench_.cluster, bench_.costs, 8,
                                {.warm_up = 1, .steady = 4});
    simulate(bench_.linked, bench_.costs, bench_.cluster,
             cluster::Disturber({.seed = 11, .compute_sigma = 0.1}, 8), 5, sink);
    const execution::Metrics m = sink.finish();
    return std::vector<double>{m.mean_step,       m.std_step,       m.robustness,
                               m.samples_per_s,   m.tokens_per_s,   m.mfu,
                               m.bubble_fraction, m.exposed_comm_s, m.bytes_sent_mean,
                               m.bytes_sent_max,  m.bytes_per_step};
  });
  const execution::Metrics& m = crossed;
  EXPECT_EQ(here, (std::vector<double>{m.mean_step, m.std_step, m.robustness, m.samples_per_s,
                                       m.tokens_per_s, m.mfu, m.bubble_fraction, m.exposed_comm_s,
                                       m.bytes_sent_mean, m.bytes_sent_max, m.bytes_per_step}));
  EXPECT_GT(m.mfu, 0);
  EXPECT_GT(m.bytes_sent_mean, 0);
}

TEST_F(Seeds, OneMoreSinkSeesTheTrace) {
  struct Counter : execution::TraceSink {
    void record(Id, Id, int step, Id, std::span<const double> starts,
                std::span<const double>) override {
      if (step < 5) count += starts.size();  // the run begins more steps than it measures
    }
    ~Counter() override { std::fprintf(stderr, "%zu", count), std::abort(); }
    std::size_t count = 0;
  };
  // The sink lives in the child of its seed. Its destructor prints the count and aborts the child,
  // so the error shows that the sink was destroyed in the child.
  try {
    run({.seeds = 1, .sink = [](int) { return std::make_unique<Counter>(); }});
    FAIL() << "nothing was thrown";
  } catch (const BackendError& error) {
    const auto ops = bench_.linked.program.roles[0].ops.size();
    EXPECT_NE(std::string(error.what()).find(std::to_string(ops * 8 * 5)), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rehearse::sim
