// A secure sum is the sum in the clear, to the bit, whoever leaves and whenever; its messages have
// the sizes that were foretold, and the program of the round sends the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "engine/link/link.h"
#include "engine/methods/lowering/secure_round.h"
#include "tests/engine/secure/secure_round.h"
#include "tests/engine/sent_bytes.h"
#include "tests/message_of.h"

namespace rehearse::secure {
namespace {

constexpr std::int64_t elements = 1500;  // more than one piece of a mask, and no multiple of it

struct Inputs {
  std::vector<double> weights = {};
  std::vector<std::vector<float>> values = {};
  std::vector<std::vector<std::uint32_t>> levels = {};
};
Inputs inputs(const Group& group) {
  Inputs out;
  for (Id id = 0; id < static_cast<Id>(group.settings.clients); ++id) {
    out.weights.push_back((id + 1.0) / group.settings.clients);
    out.values.push_back(test::some_values(elements, id));
    out.levels.push_back(levels_of(out.values.back(), out.weights.back(), group.settings.ring));
  }
  return out;
}

/// Checks a round against the sum in the clear.
void check(const Group& group, const Leaving& leaving) {
  const Inputs in = inputs(group);
  check_leaving(group, leaving);
  const test::PlayedRound played = test::play(group, leaving, in.weights, in.levels);
  std::vector<std::uint32_t> sum(elements);
  std::vector<double> exact(elements);
  double weights = 0;
  const std::vector<Id> counted = senders(leaving, 2);
  for (const Id id : counted) {
    weights += in.weights[id];
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += in.levels[id][i];
      exact[i] += in.weights[id] * in.values[id][i];
    }
  }
  EXPECT_EQ(played.counted, counted);
  EXPECT_EQ(played.sum, sum);
  const double bound =
      error_bound(static_cast<int>(counted.size()), weights, group.settings.ring) + 1e-7;
  for (const auto& [id, message] : played.means) {
    const std::vector<float> mean = read_mean(message);
    ASSERT_EQ(mean.size(), exact.size());
    for (std::size_t i = 0; i < mean.size(); ++i)
      ASSERT_LE(std::abs(mean[i] - exact[i] / weights), bound);
  }
  const std::vector<ClientTraffic> foretold = traffic_of(group, leaving);
  std::int64_t all = 0;
  for (Id id = 0; id < leaving.size(); ++id) {
    EXPECT_EQ(played.traffic[id].up, foretold[id].up) << "client " << id;
    EXPECT_EQ(played.traffic[id].down, foretold[id].down) << "client " << id;
    for (std::size_t round = 0; round < rounds; ++round)
      all += foretold[id].up[round] + foretold[id].down[round];
  }
  EXPECT_EQ(test::sent_bytes(link::link(methods::secure_round(group, leaving))), all);
}

// Masks that are added and taken out piece by piece, at any place, are those of the whole.
TEST(SecureSum, MayBeMadeInPieces) {
  const Key key = random_secret_number();
  std::vector<std::uint32_t> whole(5000);
  add_mask(whole, key, false);
  EXPECT_GT(std::set(whole.begin(), whole.end()).size(), 4990U);
  std::vector<std::uint32_t> pieces = whole;
  std::size_t at = 0;
  for (const std::size_t size : {1U, 15U, 16U, 17U, 1023U, 1024U, 1025U, 0U, 1879U}) {
    add_mask(std::span(pieces).subspan(at, size), key, true, static_cast<std::int64_t>(at));
    at += size;
  }
  ASSERT_EQ(at, whole.size());
  EXPECT_EQ(pieces, std::vector<std::uint32_t>(whole.size(), 0));
}

TEST(SecureSum, IsTheSumInTheClear) {
  for (const int clients : {3, 4, 5, 8})
    for (const int neighbours : {0, 2, 4}) {
      if (neighbours >= clients) continue;
      SCOPED_TRACE(testing::Message() << clients << " clients, " << neighbours << " neighbours");
      const Group group =
          group_of({.clients = clients, .neighbours = neighbours, .elements = elements});
      check(group, Leaving(static_cast<std::size_t>(clients), rounds));
    }
}

TEST(SecureSum, CountsThoseWhoSentTheirLevels) {
  const Group group = group_of({.clients = 7, .threshold = 4, .elements = elements});
  for (int one = 0; one < rounds; ++one)
    for (int other = one; other < rounds; ++other) {
      SCOPED_TRACE(testing::Message() << "leaving before rounds " << one << " and " << other);
      Leaving leaving(7, rounds);
      leaving[2] = one, leaving[5] = other;
      check(group, leaving);
    }
  check(group, {4, 0, 1, 2, 4, 4, 4});
}

TEST(SecureSum, CountsThemOnARingToo) {
  const Group group =
      group_of({.clients = 12, .neighbours = 6, .threshold = 4, .elements = elements, .seed = 3});
  for (Id id = 0; id < 12; ++id)
    for (int before = 0; before < rounds; ++before) {
      Leaving leaving(12, rounds);
      leaving[id] = before;
      leaving[(id + 5) % 12] = 2;
      check(group, leaving);
    }
}

TEST(SecureSum, NeedsEnoughShares) {
  const Group group = group_of({.clients = 6, .elements = elements});
  EXPECT_EQ(group.settings.threshold, 5);
  const Leaving leaving{4, 4, 2, 3, 4, 4};
  EXPECT_NE(test::message_of([&] { check_leaving(group, leaving); }).find("--drop"),
            std::string::npos);
  const Inputs in = inputs(group);
  const std::string said =
      test::message_of<BackendError>([&] { test::play(group, leaving, in.weights, in.levels); });
  EXPECT_NE(said.find("has 4 shares, and 5 are needed"), std::string::npos) << said;
}

TEST(SecureSum, NeighboursAreMutual) {
  for (const int neighbours : {2, 4, 8}) {
    const Group group =
        group_of({.clients = 11, .neighbours = neighbours, .elements = 1, .seed = 5});
    for (Id id = 0; id < 11; ++id) {
      EXPECT_EQ(group.neighbours[id].size(), static_cast<std::size_t>(neighbours));
      for (const Id other : group.neighbours[id]) {
        EXPECT_NE(other, id);
        EXPECT_EQ(std::ranges::count(group.neighbours[other], id), 1);
      }
    }
  }
}

TEST(SecureSum, RefusesSettingsThatProtectNothing) {
  const auto refusal = [](const Settings& settings) {
    return test::message_of([&] { group_of(settings); });
  };
  EXPECT_NE(refusal({.clients = 2, .elements = 1}).find("nearest: 3"), std::string::npos);
  EXPECT_NE(refusal({.clients = 8, .neighbours = 3, .elements = 1}).find("nearest: 2"),
            std::string::npos);
  EXPECT_NE(refusal({.clients = 8, .neighbours = 8, .elements = 1}).find("from 2 to 7"),
            std::string::npos);
  EXPECT_NE(refusal({.clients = 8, .threshold = 4, .elements = 1}).find("from 5 to 8"),
            std::string::npos);
  EXPECT_NE(refusal({.clients = 2000, .elements = 1}).find("from 2 to 2147484"), std::string::npos);
  EXPECT_EQ(refusal({.clients = 1024, .elements = 1}), "no error");
}

TEST(SecureRing, ClipsAndRounds) {
  const Ring ring{.clip = 2, .levels = 5};  // -2, -1, 0, 1, 2
  const std::vector<float> values{-9, -2, -0.6F, 0.4F, 1.6F, 3};
  EXPECT_EQ(levels_of(values, 1, ring), (std::vector<std::uint32_t>{0, 0, 1, 2, 4, 4}));
  EXPECT_EQ(levels_of(values, 0.5, ring), (std::vector<std::uint32_t>{1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(mean_of(std::vector<std::uint32_t>{0, 6, 12}, 3, 3, ring),
            (std::vector<float>{-2, 0, 2}));
  EXPECT_EQ(error_bound(3, 3, ring), 0.5);
  EXPECT_THROW(levels_of(std::vector<float>{NAN}, 1, ring), BackendError);
  // The largest sum fits exactly.
  for (const int clients : {2, 3, 1024, 5000}) {
    const std::uint64_t most = most_levels(clients);
    EXPECT_LE(clients * (most - 1), 0xffffffffU);
    EXPECT_GT(clients * most, 0xffffffffU);
  }
}

}  // namespace
}  // namespace rehearse::secure
