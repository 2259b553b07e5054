// Tests what surrounds the steps of a run: signals, metrics, traces, errors before the first step,
// import and export of weights.

#include "runtime/training/train.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "engine/base/errors.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "runtime/checkpoints/huggingface.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

std::vector<json> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Train, ASignalSavesAndEndsEveryRankAtOneStep) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.path());
  job.train.steps = 1'000'000;
  const std::vector<Outcome> outcomes = run_ranks(
      2,
      [&](const Environment& environment) {
        const TrainSummary summary = train(job, environment, {.quiet = true});
        return json{{"signal", summary.signal}, {"end", summary.end_step}}.dump();
      },
      std::chrono::seconds(600),
      [&](const std::vector<pid_t>& ranks) {
        const std::string metrics = out.file("metrics.jsonl");
        for (int i = 0; i < 30'000; ++i) {
          std::error_code error;
          if (std::filesystem::file_size(metrics, error) > 300 && !error) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        for (const pid_t rank : ranks) kill(rank, SIGINT);
      });
  std::set<std::int64_t> ends;
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_EQ(json::parse(outcome.text).at("signal"), SIGINT);
    ends.insert(json::parse(outcome.text).at("end").get<std::int64_t>());
  }
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_GT(*ends.begin(), 0);
  EXPECT_THAT(find_checkpoint(out.path()), HasSubstr(fmt::format("step-{:08}", *ends.begin())));
}

TEST(Train, WritesMetricsAndATraceOfEveryRank) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}},
                           data.path(), out.path());
  job.train.eval_every = 10;
  train_in_processes(job, {.trace = out.file("trace.json"), .trace_steps = 3});
  if (HasFailure()) return;
  int steps = 0, validations = 0;
  for (const json& line : lines_of(out.file("metrics.jsonl"))) {
    steps += line.contains("loss");
    validations += line.contains("validation_loss");
  }
  EXPECT_EQ(steps, 20);
  EXPECT_EQ(validations, 2);
  std::ifstream file(out.file("trace.json"));
  const json trace = json::parse(file);
  const json& events = trace.is_array() ? trace : trace.at("traceEvents");
  std::size_t ops = 0;
  const link::LinkedProgram linked = link::link(methods::compile(job.plan, job.model));
  for (const program::Role& role : linked.program.roles) ops += role.ops.size();
  std::size_t complete = 0;
  for (const json& event : events) complete += event.at("ph") == "X";
  EXPECT_GE(complete, 3 * ops);
}

TEST(Train, RefusesBeforeTheFirstStep) {
  ScratchFolder data, out;
  write_data(data);
  const job::Job good =
      small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.file("out"));
  const auto message = [](const job::Job& job, int ranks) {
    try {
      train(job, {.rank = 0, .world_size = ranks}, {.quiet = true});
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(good, 3), HasSubstr("needs 2 ranks"));
  job::Job missing = good;
  missing.train.data.clear();
  EXPECT_THAT(message(missing, 2), HasSubstr("train.data"));
}

std::vector<std::string> texts_of(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> texts;
  for (const Outcome& outcome : outcomes) texts.push_back(outcome.text);
  return texts;
}

TEST(Train, EveryRankRefusesAFolder) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job =
      small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.file("file") + "/below");
  write_text(out.file("file"), "in the way");
  EXPECT_THAT(texts_of(fail_in_processes(job, {})), Each(HasSubstr("cannot write there")));
  job.train.out = out.file("out");
  job.train.steps = 3;
  const TrainedRun first = train_in_processes(job);
  if (HasFailure()) return;
  const std::string metrics = out.file("out") + "/metrics.jsonl";
  EXPECT_THAT(texts_of(fail_in_processes(job, {})),
              Each(AllOf(HasSubstr(job.train.out), HasSubstr("metrics of 3 steps"),
                         HasSubstr("--resume"), HasSubstr("--overwrite"))));
  EXPECT_EQ(lines_of(metrics).size(), 4U);
  job.train.steps = 2;
  const TrainedRun second = train_in_processes(job, {.overwrite = true});
  if (HasFailure()) return;
  EXPECT_EQ(lines_of(metrics).size(), 3U);
  EXPECT_FALSE(std::filesystem::exists(first.checkpoint));
  EXPECT_EQ(find_checkpoint(job.train.out), second.checkpoint);
}

TEST(HuggingFace, WeightsGoOutAndComeBack) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), out.file("first"));
  job.train.steps = 3;
  const TrainedRun first = train_in_processes(job);
  if (HasFailure()) return;
  const std::string file = out.file("model.safetensors");
  export_weights(first.checkpoint, job.model, file);
  const SafetensorsFile exported(file);
  const std::int64_t h = job.model.hidden;
  EXPECT_EQ(exported.tensors().at("transformer.wte.weight").shape,
            (std::vector<std::int64_t>{job.model.vocab, h}));
  EXPECT_EQ(exported.tensors().at("transformer.h.0.attn.c_attn.weight").shape,
            (std::vector<std::int64_t>{h, 3 * h}));
  EXPECT_EQ(exported.tensors().at("transformer.h.1.mlp.c_fc.weight").shape,
            (std::vector<std::int64_t>{h, job.model.ffn}));
  // Hugging Face's Conv1D stores weights transposed: its element [in, out] is our [out, in].
  const reference::Weights ours = weights_of(first.checkpoint, job.model);
  const auto* theirs = reinterpret_cast<const float*>(
      exported.tensors().at("transformer.h.1.mlp.c_fc.weight").data.data());
  EXPECT_EQ(theirs[5 * job.model.ffn + 7],
            ours.at("transformer.h.1.mlp.c_fc.weight")[7][5].item<float>());

  // With learning rate 0, the imported weights are saved unchanged, on another mesh.
  job::Job second =
      small_job({.method = "megatron", .mesh = {.tp = 2}}, data.path(), out.file("second"));
  second.train.steps = 1;
  second.train.lr = 0;
  const TrainedRun again = train_in_processes(second, {.import_weights = file});
  if (HasFailure()) return;
  const auto [difference, name] = worst_difference(weights_of(again.checkpoint, job.model), ours);
  EXPECT_EQ(difference, 0) << name;
}

}  // namespace
}  // namespace rehearse::runtime
