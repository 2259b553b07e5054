// Token shards and batches: a sample does not depend on the rank that asks, an epoch visits every
// window once, and every kind of damage is named.

#include "runtime/data/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/message_of.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

class DataTest : public testing::Test {
 protected:
  DataSettings settings(int global_batch = 4) const {
    return {.path = folder_.path(),
            .seq_len = 8,
            .global_batch = global_batch,
            .vocab = 300,
            .seed = 7};
  }
  std::string message(const DataSettings& settings) const {
    return test::message_of([&] { const Data data(settings); });
  }
  ScratchFolder folder_;
};

std::vector<std::uint16_t> counting(int count, int from = 0) {
  std::vector<std::uint16_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>((from + i) % 300);
  return tokens;
}

TEST_F(DataTest, LabelsAreTheNextTokens) {
  write_shard(folder_.file("x_train_0.bin"), counting(250));
  const Data data(settings());
  std::vector<std::int64_t> tokens(4 * 8), labels(4 * 8);
  data.training(0, 0, 4, tokens.data(), labels.data());
  for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(labels[i], (tokens[i] + 1) % 300);
  EXPECT_EQ(data.training_labels(0), 32);
}

TEST_F(DataTest, AnEpochVisitsEveryWindowOnceInAnotherOrderEachTime) {
  write_shard(folder_.file("train_0.bin"), counting(8 * 10 + 1));
  write_shard(folder_.file("train_1.bin"), counting(8 * 6 + 5, 100));
  const Data data(settings());
  std::vector<std::vector<std::int64_t>> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> order;
    for (int step = 4 * epoch; step < 4 * epoch + 4; ++step)
      for (int i = 0; i < 4; ++i) {
        std::vector<std::int64_t> tokens(8), labels(8);
        data.training(step, i, 1, tokens.data(), labels.data());
        order.push_back(tokens[0]);
      }
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 16U);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST_F(DataTest, ASampleDoesNotDependOnMicroBatching) {
  write_shard(folder_.file("train.bin"), counting(1000));
  const Data data(settings());
  std::vector<std::int64_t> whole(4 * 8), labels(4 * 8), one(8), ignored(8);
  data.training(3, 0, 4, whole.data(), labels.data());
  for (int i = 0; i < 4; ++i) {
    data.training(3, i, 1, one.data(), ignored.data());
    EXPECT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + 8 * i));
  }
}

TEST_F(DataTest, MaskedLabelsAreCountedWithoutReadingThem) {
  write_shard(folder_.file("train.bin"), counting(30'000));
  write_text(folder_.file("manifest.json"),
             R"({"vocab_size": 300, "special_token_ids": {"mask": 2}})");
  DataSettings masked = settings(64);
  masked.objective = Objective::masked;
  masked.seq_len = 32;
  const Data data(masked);
  std::vector<std::int64_t> tokens(64 * 32), labels(64 * 32);
  int labelled = 0, hidden = 0, kept = 0;
  for (int step = 0; step < 8; ++step) {
    data.training(step, 0, 64, tokens.data(), labels.data());
    int count = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (labels[i] == no_label) continue;
      ++count;
      hidden += tokens[i] == 2;
      kept += tokens[i] == labels[i];
    }
    EXPECT_EQ(count, data.training_labels(step));
    labelled += count;
  }
  // 15% of 16,384 positions are labelled; of those 80% are masked, 10% random, 10% kept. The
  // tolerances are four standard deviations.
  EXPECT_NEAR(labelled / (8.0 * 64 * 32), 0.15, 0.012);
  EXPECT_NEAR(double(hidden) / labelled, 0.8, 0.035);
  EXPECT_NEAR(double(kept) / labelled, 0.1, 0.03);
}

TEST_F(DataTest, NamesWhatIsWrong) {
  DataSettings missing = settings();
  missing.path = folder_.file("nowhere");
  EXPECT_THAT(message(missing), HasSubstr("no such folder"));
  EXPECT_THAT(message(settings()), HasSubstr("*train*.bin"));

  const std::string shard = folder_.file("a_train.bin");
  write_shard(shard, counting(100));
  std::filesystem::resize_file(shard, 1024 + 150);
  EXPECT_THAT(message(settings()), testing::AllOf(HasSubstr("a_train.bin"), HasSubstr("truncated"),
                                                  HasSubstr("100 tokens")));
  std::filesystem::resize_file(shard, 100);
  EXPECT_THAT(message(settings()), testing::AllOf(HasSubstr("a_train.bin"), HasSubstr("header")));
  write_shard(shard, counting(100), 20240801);
  EXPECT_THAT(message(settings()),
              testing::AllOf(HasSubstr("a_train.bin"), HasSubstr("magic number is 20240801")));
  write_shard(shard, counting(100), 20240520, 2);
  EXPECT_THAT(message(settings()), HasSubstr("version 2"));
  write_shard(shard, counting(8));
  EXPECT_THAT(message(settings()), HasSubstr("fewer than the 9"));
}

TEST_F(DataTest, RefusesTokensAndVocabulariesThatDoNotFit) {
  write_shard(folder_.file("train.bin"), counting(1000));
  DataSettings small = settings();
  small.vocab = 200;
  const Data data(small);
  std::vector<std::int64_t> tokens(8), labels(8);
  EXPECT_THROW(
      {
        for (int step = 0; step < 100; ++step)
          data.training(step, 0, 1, tokens.data(), labels.data());
      },
      InputError);
  write_text(folder_.file("manifest.json"), R"({"vocab_size": 300})");
  EXPECT_THAT(message(small), HasSubstr("vocabulary 200"));
  DataSettings masked = settings();
  masked.objective = Objective::masked;
  EXPECT_THAT(message(masked), HasSubstr("--masked-lm"));
}

TEST(Permute, IsAPermutation) {
  for (const std::int64_t count : {1, 2, 3, 7, 64, 1000}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < count; ++i) seen.insert(permute(i, count, 42));
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), count);
  }
}

}  // namespace
}  // namespace rehearse::runtime
