// Checkpoints: a resumed run equals the uninterrupted run, bit for bit on the same mesh and up to
// rounding on another. Damaged files are refused by name, and a save that fails leaves the last
// checkpoint.

#include "runtime/checkpoints/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/errors.h"
#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "tests/message_of.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Case {
  std::string name = {};
  plan::Plan plan = {};
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

job::Job job_of(const plan::Plan& plan, const ScratchFolder& data, const std::string& out) {
  job::Job job = small_job(plan, data.path(), out);
  job.train.steps = 8;
  job.train.save_every = 4;
  return job;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Resume : public testing::TestWithParam<Case> {};

TEST_P(Resume, OnTheSameMeshIsBitIdentical) {
  ScratchFolder data, out;
  write_data(data);
  const job::Job whole = job_of(GetParam().plan, data, out.file("whole"));
  const TrainedRun straight = train_in_processes(whole);
  if (HasFailure()) return;
  const job::Job rest = job_of(GetParam().plan, data, out.file("rest"));
  const TrainedRun resumed = train_in_processes(
      rest, {.resume = true, .resume_from = out.file("whole") + "/step-00000004"});
  if (HasFailure()) return;
  ASSERT_EQ(resumed.losses.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(resumed.losses[i], straight.losses[i + 4]);
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(straight.checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_EQ(bytes_of(entry.path()),
              bytes_of(fs::path(resumed.checkpoint) / entry.path().filename()))
        << entry.path();
  }
  EXPECT_GT(files, 0);
}
INSTANTIATE_TEST_SUITE_P(
    Methods, Resume,
    testing::Values(
        Case{"ddp", {.method = "ddp", .mesh = {.dp = 2}}},
        Case{"ddp_f16_clipped",
             {.method = "ddp", .mesh = {.dp = 2}, .precision = program::DType::f16, .clip = true}},
        Case{"zero3", {.method = "zero3", .mesh = {.dp = 2}}},
        Case{"topk", {.method = "topk-sync", .mesh = {.dp = 2}, .optimizer = plan::Optimizer::sgd}},
        Case{"int8", {.method = "int8-sync", .mesh = {.dp = 2}}},
        Case{"qsgd", {.method = "qsgd", .mesh = {.dp = 2}}},
        Case{"local_sgd",
             {.method = "local-sgd",
              .mesh = {.dp = 2},
              .exchange = {.averaging = {.local_steps = 3}}}},
        Case{
            "diloco",
            {.method = "diloco", .mesh = {.dp = 2}, .exchange = {.averaging = {.local_steps = 3}}}},
        Case{"fedavg",
             {.method = "fedavg",
              .mesh = {.dp = 2, .servers = 1},
              .schedule = {.global_batch = 8, .shares = {2, 6}},
              .exchange = {.averaging = {.local_steps = 3}}}},
        Case{"fedavg_with_a_deadline",
             {.method = "fedavg",
              .mesh = {.dp = 2, .servers = 1},
              .exchange = {.averaging = {.local_steps = 3, .deadline = Seconds(3600)}}}},
        Case{"fedavg_secure",
             {.method = "fedavg",
              .mesh = {.dp = 3, .servers = 1},
              .schedule = {.global_batch = 9},
              .exchange = {.averaging = {.local_steps = 3, .secure = {.on = true}}}}},
        Case{"d_psgd", {.method = "d-psgd", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}}},
        Case{"signs", {.method = "ef-signsgd", .mesh = {.dp = 2}}},
        Case{"powersgd",
             {.method = "powersgd",
              .mesh = {.dp = 2},
              .exchange = {.low_rank = {.rank = 2, .start = 2}}}},
        Case{"powersgd_from_there_on",
             {.method = "powersgd", .mesh = {.dp = 2}, .exchange = {.low_rank = {.start = 4}}}},
        Case{
            "momenta",
            {.method = "onebit-adam", .mesh = {.dp = 2}, .exchange = {.quantised = {.freeze = 2}}}},
        Case{"two_versions",
             {.method = "pipedream-2bw", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}},
        Case{"ssp", {.method = "ps-sync", .mesh = {.dp = 2, .servers = 1}}}),
    [](const auto& info) { return info.param.name; });

class OtherMesh : public testing::TestWithParam<Case> {};

TEST_P(OtherMesh, GoesOnWhereTheFirstStopped) {
  ScratchFolder data, out;
  write_data(data);
  const plan::Plan from{
      .method = "megatron", .mesh = {.dp = 2, .tp = 2}, .optimizer = plan::Optimizer::sgd};
  const TrainedRun straight = train_in_processes(job_of(from, data, out.file("whole")));
  if (HasFailure()) return;
  plan::Plan to = GetParam().plan;
  to.optimizer = plan::Optimizer::sgd;
  const job::Job rest = job_of(to, data, out.file("rest"));
  const TrainedRun resumed = train_in_processes(
      rest, {.resume = true, .resume_from = out.file("whole") + "/step-00000004"});
  if (HasFailure()) return;
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(resumed.losses[i] / straight.losses[i + 4], 1, 1e-5);
  const auto [difference, name] = worst_difference(weights_of(resumed.checkpoint, rest.model),
                                                   weights_of(straight.checkpoint, rest.model));
  EXPECT_LE(difference, 1e-5) << name;
}
INSTANTIATE_TEST_SUITE_P(
    Methods, OtherMesh,
    testing::Values(
        Case{"ddp_2", {.method = "ddp", .mesh = {.dp = 2}}},
        Case{"zero3_4", {.method = "zero3", .mesh = {.dp = 4}}},
        Case{"hsdp_4",
             {.method = "hsdp", .mesh = {.dp = 4}, .exchange = {.sharding = {.shard_group = 2}}}},
        Case{"pipeline_2", {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}},
        Case{"servers", {.method = "ps-sync", .mesh = {.dp = 2, .servers = 2}}}),
    [](const auto& info) { return info.param.name; });

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    write_data(data_);
    job_ = job_of({.method = "ddp", .mesh = {.dp = 2}}, data_, out_.path());
    run_ = train_in_processes(job_);
  }
  std::string shard() const { return run_.checkpoint + "/rank-00000.safetensors"; }
  /// The error of a resumed run, which must be the same on every rank.
  std::string message() const {
    const std::vector<Outcome> outcomes = fail_in_processes(job_, {.resume = true});
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.text, outcomes[0].text);
    return outcomes[0].status == 1 ? outcomes[0].text : "no error";
  }
  ScratchFolder data_, out_;
  job::Job job_;
  TrainedRun run_;
};

TEST_F(Damage, IsRefusedByNameOnEveryRankWithTheOneToTakeInstead) {
  ASSERT_FALSE(HasFailure());
  const auto instead = HasSubstr("--resume-from " + out_.path() + "/step-00000004");
  const std::string good = bytes_of(shard());
  std::string changed = good;
  changed[good.size() - 100] = static_cast<char>(changed[good.size() - 100] ^ 1);
  write_text(shard(), changed);
  EXPECT_THAT(message(),
              AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("checksum"), instead));
  write_text(shard(), good.substr(0, good.size() / 2));
  EXPECT_THAT(message(), AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("truncated")));
  write_text(shard(), good.substr(0, 4));
  EXPECT_THAT(message(), AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("truncated")));
  fs::remove(shard());
  EXPECT_THAT(message(), AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("No such file")));
  write_text(shard(), good);

  const std::string manifest = run_.checkpoint + "/manifest.json";
  const std::string text = bytes_of(manifest);
  std::string later = text;
  later.replace(later.find("\"step\": 8"), 9, "\"step\": 4611686018427387904");
  write_text(manifest, later);
  EXPECT_THAT(message(), AllOf(HasSubstr("manifest.json"), HasSubstr("damaged"), instead));
  write_text(manifest, text.substr(0, text.size() / 2));
  EXPECT_THAT(message(), AllOf(HasSubstr("manifest.json"), HasSubstr("damaged")));
  write_text(manifest, text);

  job::Job other = job_;
  other.model.name = "another";
  EXPECT_THAT(fail_in_processes(other, {.resume = true})[0].text,
              AllOf(HasSubstr("manifest.json: the checkpoint is of model gpt-tiny"),
                    Not(HasSubstr("--resume-from"))));
}

TEST_F(Damage, OfAnyByteOfAShardIsSeen) {
  ASSERT_FALSE(HasFailure());
  const std::string good = bytes_of(shard());
  std::uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof length);
  // Every byte of the header, and every 997th of the data.
  for (std::size_t at = 0; at < good.size(); at += at < 8 + length ? 1 : 997) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write_text(shard(), bad);
    CheckpointReader reader(run_.checkpoint);
    EXPECT_THAT(test::message_of([&] { reader.verify(0); }),
                AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("checksum")))
        << at;
  }
}

TEST_F(Damage, GoingOnFromBeforeItTakesBackWhatFollowed) {
  ASSERT_FALSE(HasFailure());
  write_text(run_.checkpoint + "/manifest.json", "");
  const TrainedRun again =
      train_in_processes(job_, {.resume = true, .resume_from = out_.path() + "/step-00000004"});
  EXPECT_EQ(again.losses, std::vector(run_.losses.begin() + 4, run_.losses.end()));
  EXPECT_EQ(find_checkpoint(out_.path()), run_.checkpoint);
  EXPECT_EQ(read_manifest(run_.checkpoint).step, 8);
}

TEST_F(Damage, AFullDiskLeavesTheLastCheckpoint) {
  ASSERT_FALSE(HasFailure());
  job::Job longer = job_;
  longer.train.steps = 12;
  const std::vector<Outcome> outcomes = fail_in_processes(longer, {.resume = true}, [](int) {
    // Writes beyond this size fail, as on a full disk.
    const rlimit limit{.rlim_cur = 100'000, .rlim_max = 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
  });
  EXPECT_EQ(outcomes[0].status, 1);
  EXPECT_THAT(outcomes[0].text,
              AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("cannot write")));
  EXPECT_EQ(outcomes[1].status, 1);
  EXPECT_THAT(outcomes[1].text, HasSubstr("cannot write"));
  EXPECT_EQ(find_checkpoint(out_.path()), run_.checkpoint);
  const TrainedRun resumed = train_in_processes(longer, {.resume = true});
  EXPECT_EQ(resumed.losses.size(), 4U);
}

TEST(Checkpoint, ThereIsNothingToResume) {
  ScratchFolder folder;
  EXPECT_THROW(find_checkpoint(folder.path()), InputError);
}

TEST(Safetensors, RoundTrips) {
  ScratchFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> halves = {7, 8, 9};
  const FileSum sum = write_safetensors(
      folder.file("a.safetensors"),
      {{"x",
        {.dtype = program::DType::f32, .shape = {2, 3}, .data = std::as_bytes(std::span(values))}},
       {"y",
        {.dtype = program::DType::f16, .shape = {3}, .data = std::as_bytes(std::span(halves))}}},
      {{"format", "pt"}});
  const SafetensorsFile file(folder.file("a.safetensors"), sum);
  EXPECT_THAT(test::message_of([&] {
                const SafetensorsFile other(folder.file("a.safetensors"),
                                            FileSum{sum.bytes, sum.checksum ^ 1});
              }),
              HasSubstr("checksum"));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors().at("x").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(file.tensors().at("x").data, std::as_bytes(std::span(values))));
  EXPECT_EQ(file.tensors().at("y").dtype, program::DType::f16);
}

TEST(Safetensors, EachPieceIsASignOfLife) {
  ScratchFolder folder;
  int told = 0;
  const auto alive = [&] { ++told; };
  const std::vector<std::byte> bytes(file_piece + 1);
  const FileSum sum = write_safetensors(
      folder.file("a.safetensors"),
      {{"x",
        {.dtype = program::DType::u8, .shape = {std::ssize(bytes)}, .data = std::span(bytes)}}},
      {}, alive);
  EXPECT_EQ(told, 4);  // the length of the header, the header, two pieces
  told = 0;
  const SafetensorsFile checked(folder.file("a.safetensors"), sum, alive);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace rehearse::runtime
