// Tests changes of plan in real runs: a run that migrates ends with the same weights as one that
// did not, can be resumed from checkpoints before, at and after the change, and becomes faster when
// samples follow the measured speed of ranks. Errors and signals during planning end all ranks.
#include "engine/planner/policy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/numbers/median.h"
#include "engine/methods/strategy.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/training/train.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr double tolerance = 1e-5;

struct Case {
  std::string name = {};
  plan::Plan from = {}, to = {};
  std::string model = "gpt-tiny";
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// The second plan, completed, with the batch, the optimizer and the clipping of the job.
plan::Plan second_plan(plan::Plan plan, const job::Job& job) {
  plan.schedule.global_batch = job.plan.schedule.global_batch;
  plan.optimizer = job.plan.optimizer;
  plan.clip = job.plan.clip;
  plan.exchange.bucket = Bytes(30e3);  // differs from the first plan's
  return methods::prepare(plan, job.model);
}

job::Job first_job(const Case& c, plan::Optimizer optimizer, const std::string& data,
                   const std::string& out) {
  plan::Plan deepest = c.from;
  deepest.optimizer = optimizer;
  job::Job job = small_job(deepest, data, out, c.model);
  if (job.model.layers < 4) {  // 4 layers are enough for the stages of both plans
    job.model.layers = 4;
    job.model.groups.clear();
    job.model.segments.clear();
    job.model = build_model(job.model);
    plan::Plan again = c.from;
    again.optimizer = optimizer;
    again.schedule.global_batch = job.plan.schedule.global_batch;
    again.exchange.bucket = job.plan.exchange.bucket;
    job.plan = methods::prepare(again, job.model);
  }
  return job;
}

TrainOptions replacing(const job::Job& job, const plan::Plan& to, std::int64_t step) {
  const plan::Plan plan = second_plan(to, job);
  TrainOptions options;
  options.policy = std::make_shared<planner::ReplaceOnce>(
      step, [plan](const planner::Measured&, const plan::Plan&) { return plan; });
  return options;
}

class Replaced : public testing::TestWithParam<Case> {};

TEST_P(Replaced, EndsLikeARunThatStayed) {
  ScratchFolder data, out;
  write_data(data);
  for (const plan::Optimizer optimizer : {plan::Optimizer::sgd, plan::Optimizer::adamw}) {
    const job::Job job = first_job(GetParam(), optimizer, data.path(),
                                   out.file(optimizer == plan::Optimizer::sgd ? "sgd" : "adamw"));
    const TrainedRun run = train_in_processes(job, replacing(job, GetParam().to, 7));
    if (HasFailure()) return;
    const ReferenceRun reference = train_reference(job);
    ASSERT_EQ(run.losses.size(), reference.losses.size());
    for (std::size_t step = 0; step < run.losses.size(); ++step)
      EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, tolerance) << "step " << step;
    EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, tolerance);
    const reference::Weights weights = weights_of(run.checkpoint, job.model);
    EXPECT_NEAR(global_norm(weights) / global_norm(reference.weights), 1, tolerance);
    if (optimizer == plan::Optimizer::sgd) {
      const auto [difference, name] = worst_difference(weights, reference.weights);
      EXPECT_LE(difference, tolerance) << name;
    }
    // The run changed its plan once.
    EXPECT_EQ(read_manifest(run.checkpoint).record.placements, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Replaced,
    testing::ValuesIn(std::vector<Case>{
        {"ddp_to_1f1b",
         {.method = "ddp", .mesh = {.dp = 2}},
         {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}},
        {"zero2_to_megatron_pp2_tp2",
         {.method = "zero2", .mesh = {.dp = 4}, .schedule = {.micro_batches = 2}},
         {.method = "megatron", .mesh = {.pp = 2, .tp = 2}, .schedule = {.micro_batches = 2}}},
        {"megatron_tp2_to_zero3",
         {.method = "megatron", .mesh = {.dp = 2, .tp = 2}},
         {.method = "zero3", .mesh = {.dp = 4}}},
        {"ddp_to_unequal_shares",
         {.method = "ddp", .mesh = {.dp = 2}},
         {.method = "ddp", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2, .shares = {3, 1}}}},
        {"ddp_to_ranks_on_other_devices",
         {.method = "ddp", .mesh = {.dp = 4}},
         {.method = "megatron",
          .mesh = {.pp = 2, .tp = 2},
          .schedule = {.micro_batches = 2},
          .placement = {.rank_to_device = {2, 0, 3, 1}}}},
        {"zero1_clipped_to_pp_dp_unequal_shares",
         {.method = "zero1", .mesh = {.dp = 4}, .clip = true},
         {.method = "1f1b",
          .mesh = {.pp = 2, .dp = 2},
          .schedule = {.micro_batches = 2, .shares = {1, 3}}}},
    }),
    [](const auto& info) { return info.param.name; });

class Resumed : public testing::TestWithParam<int> {};

TEST_P(Resumed, GoesOnBitByBitAcrossTheChange) {
  // The checkpoint of step 4 is from before, at or after the change.
  const int change = GetParam();
  ScratchFolder data, out;
  write_data(data);
  const Case c = {"",
                  {.method = "zero2", .mesh = {.dp = 2}},
                  {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}};
  const auto job_into = [&](const std::string& name) {
    job::Job job = first_job(c, plan::Optimizer::adamw, data.path(), out.file(name));
    job.train.steps = 8;
    job.train.save_every = 4;
    job.train.eval_every = 2;
    return job;
  };
  const job::Job whole = job_into("whole"), rest = job_into("rest");
  const TrainedRun straight = train_in_processes(whole, replacing(whole, c.to, change));
  if (HasFailure()) return;
  TrainOptions options = replacing(rest, c.to, change);
  options.resume = true;
  options.resume_from = out.file("whole") + "/step-00000004";
  EXPECT_EQ(read_manifest(options.resume_from).record.placements, change < 4 ? 1 : 0);
  const TrainedRun resumed = train_in_processes(rest, options);
  if (HasFailure()) return;
  ASSERT_EQ(resumed.losses.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(resumed.losses[i], straight.losses[i + 4]);
  EXPECT_EQ(resumed.validation_loss, straight.validation_loss);
  const auto [difference, name] = worst_difference(weights_of(resumed.checkpoint, rest.model),
                                                   weights_of(straight.checkpoint, rest.model));
  EXPECT_EQ(difference, 0) << name;
  EXPECT_EQ(read_manifest(resumed.checkpoint).record.placements, 1);
}
INSTANTIATE_TEST_SUITE_P(BeforeAtAndAfter, Resumed, testing::Values(6, 4, 2));

/// A policy that calls a function when it is asked, and never changes the plan.
class Asked final : public planner::Policy {
 public:
  explicit Asked(std::function<void()> what) : what_(std::move(what)) {}
  std::optional<std::int64_t> next(std::int64_t step, int) const override {
    return std::max<std::int64_t>(step, 5);
  }
  std::optional<plan::Plan> observe(const planner::Measured&, const plan::Plan&) override {
    what_();
    return std::nullopt;
  }

 private:
  std::function<void()> what_;
};

TEST(PolicyRun, FailsEverywhereWhenPlanningFails) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.path());
  const auto messages = [&](const std::shared_ptr<planner::Policy>& policy) {
    TrainOptions options;
    options.overwrite = true;  // replaces the previous run
    options.policy = policy;
    std::vector<std::string> texts;
    for (const Outcome& outcome : fail_in_processes(job, options)) {
      EXPECT_NE(outcome.status, 0) << outcome.text;
      texts.push_back(outcome.text);
    }
    return texts;
  };
  for (const std::string& text :
       messages(std::make_shared<Asked>([] { throw InputError("no plan fits into 2 x 80 GB"); })))
    EXPECT_THAT(text, HasSubstr("no plan fits into 2 x 80 GB"));
  const plan::Plan other = methods::prepare(
      {.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}}, job.model);
  for (const std::string& text : messages(std::make_shared<planner::ReplaceOnce>(
           5, [&](const planner::Measured&, const plan::Plan&) { return other; })))
    EXPECT_THAT(text, HasSubstr("the new plan has world size 4, the run has 2"));
  // A rank that dies while the others wait for the plan is named.
  const std::vector<std::string> texts = messages(std::make_shared<Asked>([] { raise(SIGKILL); }));
  EXPECT_THAT(texts[1], HasSubstr("rank 0"));
}

TEST(PolicyRun, ASignalWhilePlanningSavesAndEnds) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.path());
  TrainOptions options;
  options.policy = std::make_shared<Asked>([] { raise(SIGINT); });
  options.quiet = true;
  const std::vector<Outcome> outcomes = run_ranks(2, [&](const Environment& environment) {
    const TrainSummary summary = train(job, environment, options);
    return json{{"signal", summary.signal}, {"end", summary.end_step}}.dump();
  });
  ASSERT_EQ(outcomes[0].status, 0) << outcomes[0].text;
  ASSERT_EQ(outcomes[1].status, 0) << outcomes[1].text;
  const json said = json::parse(outcomes[0].text);
  EXPECT_EQ(said.at("signal"), SIGINT);
  EXPECT_GE(said.at("end").get<int>(), 5);
  EXPECT_LT(said.at("end").get<int>(), 20);
  EXPECT_EQ(json::parse(outcomes[1].text).at("end"), said.at("end"));
  EXPECT_THAT(find_checkpoint(out.path()),
              HasSubstr(fmt::format("step-{:08}", said.at("end").get<int>())));
}

TEST(PolicyRun, TellsOfTheChangeInMetricsAndTrace) {
  ScratchFolder data, out;
  write_data(data);
  const Case c = {
      "", {.method = "zero1", .mesh = {.dp = 2}}, {.method = "megatron", .mesh = {.tp = 2}}};
  const job::Job job = first_job(c, plan::Optimizer::adamw, data.path(), out.path());
  TrainOptions options = replacing(job, c.to, 7);
  options.trace = out.file("trace.json");
  options.trace_steps = 2;
  train_in_processes(job, options);
  if (HasFailure()) return;
  std::ifstream lines(out.file("metrics.jsonl"));
  json change;
  for (std::string line; std::getline(lines, line);)
    if (const json one = json::parse(line); one.contains("plan")) change = one;
  EXPECT_EQ(change.value("step", -1), 7);
  EXPECT_THAT(change.value("plan", ""), HasSubstr("megatron"));
  EXPECT_GT(change.value("migration_bytes", 0), 0);
  std::ifstream file(out.file("trace.json"));
  const json trace = json::parse(file);
  std::map<int, std::string> lanes;  // of rank 0
  std::map<std::string, std::pair<double, double>> when;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 0) continue;
    if (event.at("name") == "thread_name") lanes[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    auto& [first, last] = when.try_emplace(lanes.at(event.at("tid")), 1e18, 0).first->second;
    first = std::min(first, event.at("ts").get<double>());
    last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  ASSERT_TRUE(when.contains("compute") && when.contains("migration send") &&
              when.contains("plan 2 compute"));
  EXPECT_LE(when["compute"].second, when["migration send"].first);
  EXPECT_LE(when["migration unpack"].second, when["plan 2 compute"].first);
}

TEST(PolicyRun, SamplesFollowMeasuredSpeed) {
  ScratchFolder data, out;
  write_data(data);
  plan::Plan plan{.method = "ddp",
                  .mesh = {.dp = 2},
                  .schedule = {.global_batch = 64},
                  .optimizer = plan::Optimizer::sgd};
  job::Job job = small_job(plan, data.path(), out.path());
  // So slow that no other work on the machine makes rank 0 look like it, or the last steps long.
  job.disturb.stragglers.push_back({.rank = 1, .factor = 50});
  // Before the ranks, which are forks: else their first step, slowed down 50 times, loads LibTorch.
  const ReferenceRun reference = train_reference(job);
  const std::vector<Outcome> outcomes = run_ranks(2, [&](const Environment& environment) {
    TrainOptions options;
    options.quiet = true;
    options.policy = std::make_shared<planner::BalanceLoad>(6, 0.1);
    const TrainSummary summary = train(job, environment, options);
    json changes = json::array();
    for (const Replacement& r : summary.replacements)
      changes.push_back({{"step", r.step}, {"plan", r.plan}});
    return json{{"times", summary.step_times},
                {"losses", summary.losses},
                {"changes", changes},
                {"checkpoint", summary.checkpoint}}
        .dump();
  });
  for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.status, 0) << outcome.text;
  const json said = json::parse(outcomes[0].text);
  ASSERT_GE(said.at("changes").size(), 1U);
  EXPECT_EQ(said.at("changes")[0].at("step"), 6);
  const auto losses = said.at("losses").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), reference.losses.size());
  for (std::size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step] / reference.losses[step], 1, tolerance) << "step " << step;
  const auto [difference, name] = worst_difference(
      weights_of(said.at("checkpoint").get<std::string>(), job.model), reference.weights);
  EXPECT_LE(difference, tolerance) << name;
  // In units of one sample on the fast rank: with 32 samples each, the slow rank takes 1600; with
  // 63 and 1 the fast one takes 63.
  const auto times = said.at("times").get<std::vector<double>>();
  const double before = median({times.begin(), times.begin() + 5});
  const double after = median({times.end() - 8, times.end()});
  EXPECT_LT(after, 0.75 * before) << said.at("changes").dump();
  RecordProperty("step_before_s", fmt::format("{}", before));
  RecordProperty("step_after_s", fmt::format("{}", after));
}

}  // namespace
}  // namespace rehearse::runtime
