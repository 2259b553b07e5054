// The C++ interface of librehearse.so: jobs from text, results, refusals, several calls in one
// process. That its numbers are the command's is tested by tests/cli/test_cpp_library.py.
#include "study/rehearse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace rehearse::study {
namespace {

using test::message_of;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* tiny = R"(
model.name = "gpt-tiny"
cluster.name = "paper"
cluster.world_size = 4
method.name = "ddp"
train.global_batch = 16
)";

const Options analytic{.network = Fidelity::analytic};

TEST(Library, AResultIsConsistent) {
  const Job job = Job::from_text(tiny, {"disturb.compute_jitter=0.1"});
  const Result r = simulate(job, {.network = Fidelity::analytic, .seeds = 3});
  EXPECT_EQ(r.method, "ddp");
  EXPECT_EQ(r.world_size, 4);
  ASSERT_EQ(r.step_by_seed_s.size(), 3);
  EXPECT_GT(r.step_ci95_s, 0);
  EXPECT_NEAR(r.samples_per_s * r.step_s, 16, 0.2);
  ASSERT_TRUE(r.mfu);
  EXPECT_GT(*r.mfu, 0);
  EXPECT_FALSE(r.calibrated);
  EXPECT_FALSE(r.interval_s);
  EXPECT_GT(r.sent_mean, 0);
  EXPECT_LE(r.sent_mean, r.sent_max);
  EXPECT_DOUBLE_EQ(r.sent_total, 4 * r.sent_mean);
  ASSERT_EQ(r.memory.size(), 1);
  std::int64_t sum = 0;
  for (const auto& [what, bytes] : r.memory[0].parts) sum += bytes;
  EXPECT_EQ(sum, r.memory[0].peak);
  EXPECT_GT(r.memory[0].parts.at("gradients"), 0);
  EXPECT_LT(r.memory[0].peak, r.memory[0].capacity);
}

constexpr double two_days = 2 * 86400;
const std::vector<std::string> failing = {"faults.model=rsc1-a100", "faults.rate=1000"};

TEST(Library, RecoveriesAreCompared) {
  const Job job = Job::from_text(tiny, failing);
  int heard = 0;
  Options options = analytic;
  options.seeds = 3;
  options.progress = [&](const std::string& what) { heard += !what.empty(); };
  const std::vector<Recovered> rows =
      compare_recoveries(job, two_days, "restart,replica", "sharded,peer", options);
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[0].label, "restart, sharded");
  EXPECT_EQ(rows[3].label, "replica, peer");
  EXPECT_GE(heard, 4);
  for (const Recovered& row : rows) {
    ASSERT_TRUE(row.result) << row.refusal;
    const Goodput& one = *row.result;
    EXPECT_EQ(one.goodput_by_seed.size(), 3);
    double all = one.productive_s;
    for (const auto& [cause, seconds] : one.lost_s) all += seconds;
    EXPECT_NEAR(all, two_days, 1e-3);
    EXPECT_NEAR(one.goodput, one.productive_s / two_days, 1e-9);
    EXPECT_GT(one.interruptions, 0);
    EXPECT_TRUE(one.save_every);
  }
  EXPECT_NE(rows[0].result->goodput, rows[2].result->goodput);
  // Walks count nanoseconds.
  EXPECT_NEAR(rows[0].result->step_s, simulate(job, options).step_s, 1e-9);
}

TEST(Library, RecoveriesThatCannotBeAreRowsOrErrors) {
  const auto said = [](const std::string& recovery, double seconds, const std::string& key) {
    return message_of([&] {
      std::vector<std::string> set = failing;
      set.push_back(key);
      compare_recoveries(Job::from_text(tiny, set), seconds, recovery, "", analytic);
    });
  };
  std::vector<std::string> sharded = failing;
  sharded.emplace_back("method.name=zero2");
  const std::vector<Recovered> rows =
      compare_recoveries(Job::from_text(tiny, sharded), two_days, "replica,restart", "", analytic);
  EXPECT_THAT(rows[0].refusal, HasSubstr("method.zero = 0"));
  EXPECT_TRUE(rows[1].result);
  EXPECT_THAT(said("replica", two_days, "method.name=zero2"), HasSubstr("method.zero = 0"));
  EXPECT_THAT(said("restat", two_days, "faults.seed=1"),
              StartsWith("recovery restat: \"restat\" is not one of"));
  EXPECT_THAT(said("restart", 1, "faults.seed=1"), StartsWith("duration 1s: must be from"));
  EXPECT_THAT(said("restart", two_days, "faults.model="), HasSubstr("faults.model"));
}

#ifdef REHEARSE_HAS_SIM
TEST(Library, SimulatesSeveralTimesInOneProcess) {
  const Job job = Job::from_text(tiny);
  int heard = 0;
  const Options options{.progress = [&](const std::string& what) { heard += !what.empty(); }};
  const Result first = simulate(job, options), again = simulate(job, options);
  EXPECT_GT(heard, 0);
  EXPECT_EQ(first.step_s, again.step_s);
  const std::vector<Compared> rows = compare(job, "ddp,zero3");
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].result.value().step_s, first.step_s);
  EXPECT_NE(rows[1].result.value().step_s, first.step_s);
}
#else
TEST(Library, SaysThatItHasNoSimGrid) {
  EXPECT_THAT(message_of([] { simulate(Job::from_text(tiny)); }), HasSubstr("has no SimGrid"));
}
#endif

TEST(Library, AMethodThatCannotRunIsARow) {
  const auto rows = compare(Job::from_text(tiny), "ddp,1f1b@pp=3", analytic);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_TRUE(rows[0].result);
  EXPECT_EQ(rows[0].refusal, "");
  EXPECT_EQ(rows[1].label, "1f1b@pp=3");
  EXPECT_FALSE(rows[1].result);
  EXPECT_THAT(rows[1].refusal, HasSubstr("method.pp"));
}

TEST(Library, RefusesWhatTheCommandRefuses) {
  EXPECT_THAT(message_of([] { Job::from_text("model.nam = \"gpt-tiny\"", {}, "my.toml"); }),
              StartsWith("my.toml:1: key \"model.nam\": unknown"));
  EXPECT_THAT(message_of([] { Job::from_text(tiny, {"method.dp=three"}, "my.toml"); }),
              HasSubstr("method.dp"));
  EXPECT_THAT(message_of([] { Job::from_file("nowhere.toml"); }), StartsWith("nowhere.toml: "));
  EXPECT_THAT(message_of([] { compare(Job::from_text(tiny), "dpp", analytic); }),
              HasSubstr("did you mean"));
  EXPECT_THAT(message_of([] {
                simulate(Job::from_text(tiny, {"model.name=gpt2-124m", "train.global_batch=4096"}),
                         analytic);
              }),
              HasSubstr("GB"));
  EXPECT_EQ(message_of([] { simulate(Job::from_text(tiny), {.seeds = 0}); }),
            "seeds: 0: must be at least 1");
  EXPECT_EQ(message_of([] { simulate(Job::from_text(tiny), {.steps = 5}); }),
            "steps: 5: must be at least 6");
  EXPECT_EQ(message_of([] { simulate(Job::from_text(tiny), {.precision = 1.5}); }),
            "precision: 1.5: must be from 0 to 1");
}

TEST(Library, APlanThatIsOpenIsDecidedFirst) {
  const Result r = simulate(Job::from_text(tiny, {"method.name=adaptive"}), analytic);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_GT(r.step_s, 0);
}

}  // namespace
}  // namespace rehearse::study
