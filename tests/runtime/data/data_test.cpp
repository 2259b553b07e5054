// Token shards and batches: a sample does not depend on the rank that asks, an epoch visits every
// window once, and every kind of damage is named.

#include "runtime/data/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/data/permute.h"
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

// Four inputs for two clients with 3 and 1 samples of each batch: tokens say which input they are
// of.
class SourcesTest : public DataTest {
 protected:
  SourcesTest() {
    for (int input = 0; input < 4; ++input)
      for (const int part : {0, 1})
        if (part == 0 || input == 2)
          write_shard(folder_.file("x_train_" + std::to_string(2 * input + part) + ".bin"),
                      counting(8 * (4 + input + part) + 3, 70 * input));
    manifest();
  }
  void manifest(const std::string& inputs = "0 1 2 2 3") {
    std::string shards;
    std::istringstream of(inputs);
    std::string input;
    for (const int file : {0, 2, 4, 5, 6})
      if (of >> input)
        shards += (shards.empty() ? "" : ",") + std::string(R"({"file": "x_train_)") +
                  std::to_string(file) + R"(.bin", "input": )" + input + "}";
    write_text(folder_.file("manifest.json"),
               R"({"inputs": [{"name": "a.txt"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
                   "train": {"shards": [)" +
                   shards + "]}}");
  }
  DataSettings of(std::vector<int> clients, int length = 8) const {
    DataSettings out = settings(std::accumulate(clients.begin(), clients.end(), 0));
    out.clients.samples = std::move(clients), out.seq_len = length;
    return out;
  }
};

TEST_F(SourcesTest, AClientReadsItsInputsAloneAndEachWindowOnceAnEpoch) {
  const Data data(of({3, 1}));
  std::vector<std::multiset<std::int64_t>> seen(2);
  // Client 0 has inputs 0 and 2, 4 + 6 + 7 windows; client 1 has 1 and 3, 5 + 7.
  const std::vector<std::int64_t> windows{17, 12};
  std::vector<std::int64_t> tokens(8), labels(8);
  for (int step = 0; step < 17 * 12; ++step)
    for (int place = 0; place < 4; ++place) {
      data.training(step, place, 1, tokens.data(), labels.data());
      const int client = place < 3 ? 0 : 1;
      const std::int64_t input = tokens[0] / 70;
      EXPECT_EQ(input % 2, client) << "step " << step << " place " << place;
      seen[static_cast<std::size_t>(client)].insert(tokens[0]);
    }
  for (const int client : {0, 1}) {
    const auto& all = seen[static_cast<std::size_t>(client)];
    const std::int64_t samples = client == 0 ? 3 : 1,
                       own = windows[static_cast<std::size_t>(client)];
    for (const std::int64_t first :
         all)  // the second shard of input 2 begins as the first one does
      EXPECT_EQ(all.count(first) % static_cast<std::size_t>(17 * 12 * samples / own), 0U);
    EXPECT_EQ(std::ssize(all), 17 * 12 * samples);
  }
}

TEST_F(SourcesTest, RanksPlayOtherClientsInEachRound) {
  DataSettings drawn = of({3, 1});
  drawn.clients.count = 4, drawn.clients.round = 5;
  const Data data(drawn);
  const std::vector<std::size_t> windows{4, 5, 13, 7};
  constexpr int rounds = 600;
  std::map<std::vector<std::int64_t>, int> sets;
  std::map<std::int64_t, std::set<std::vector<std::int64_t>>> orders;  // by client
  std::vector<std::int64_t> tokens(8), labels(8);
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::int64_t> players = data.drawn_clients(5L * round);
    ASSERT_EQ(players.size(), 2U);
    EXPECT_NE(players[0], players[1]);
    ++sets[players];
    std::vector<std::vector<std::int64_t>> seen(2);
    for (int step = 5 * round; step < 5 * round + 5; ++step) {
      EXPECT_EQ(data.drawn_clients(step), players);
      for (int place = 0; place < 4; ++place) {
        data.training(step, place, 1, tokens.data(), labels.data());
        const std::size_t rank = place < 3 ? 0 : 1;
        EXPECT_EQ(tokens[0] / 70, players[rank]);
        seen[rank].push_back(tokens[0]);
      }
    }
    // A client begins with an epoch of its own: no window twice before all were read once.
    for (const std::size_t rank : {0, 1}) {
      const std::size_t own = windows[static_cast<std::size_t>(players[rank])];
      if (players[rank] == 2) continue;  // its second shard begins as the first one does
      const std::size_t epoch = std::min(own, seen[rank].size());
      const auto end = seen[rank].begin() + static_cast<std::ptrdiff_t>(epoch);
      EXPECT_EQ(std::set<std::int64_t>(seen[rank].begin(), end).size(), epoch);
      orders[players[rank]].insert(seen[rank]);
    }
  }
  // Of 12 pairs in order, each is drawn 50 times on average; the standard deviation is 6.8.
  EXPECT_EQ(sets.size(), 12U);
  for (const auto& [players, times] : sets) EXPECT_NEAR(times, rounds / 12.0, 27);
  for (const auto& [client, all] : orders) EXPECT_GT(all.size(), 100U) << client;
  EXPECT_TRUE(Data(of({3, 1})).drawn_clients(0).empty());
}

TEST_F(SourcesTest, RefusesDataThatDoesNotFit) {
  DataSettings many = of({1, 1});
  many.clients.count = 5;
  EXPECT_THAT(message(many), testing::AllOf(HasSubstr("train.clients: "),
                                            HasSubstr("4 inputs (a.txt, b, c, d) for 5 clients"),
                                            HasSubstr("at most 4 clients")));
  EXPECT_THAT(message(of({1, 1, 1, 1, 1})),
              testing::AllOf(HasSubstr("training text of 4 inputs (a.txt, b, c, d) for 5 data-"),
                             HasSubstr("at most 4 ranks")));
  EXPECT_THAT(message(of({1, 1, 1, 1}, 50)),
              HasSubstr("rank 0 has the text of a.txt, which is short"));
  for (const char* inputs : {"0 1 2 2", "0 1 2 2 4", "0 1 2 2 -1", "0 1 2 2 \"3\""}) {
    manifest(inputs);
    EXPECT_THAT(message(of({1, 1})), HasSubstr("data/prepare.py --by-input")) << inputs;
  }
  write_text(folder_.file("manifest.json"), "[]");
  EXPECT_THAT(message(of({1, 1})), HasSubstr("data/prepare.py --by-input"));
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
