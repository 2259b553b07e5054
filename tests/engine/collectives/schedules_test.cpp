// Schedules: bytes sent equal closed forms, pipelines deliver in time, and the choice of an
// algorithm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/errors.h"
#include "engine/collectives/schedule.h"
#include "tests/engine/collectives/members.h"

namespace rehearse::collectives {
namespace {

// Tensors so large that pipelines have several pieces. Checks only the bounds of transfers.
TEST(Schedules, PipelinesSendAndReceiveOneTransferARound) {
  for (program::Move move :
       {program::Move::broadcast, program::Move::reduce, program::Move::all_reduce})
    for (program::Algorithm algorithm : {program::Algorithm::ring, program::Algorithm::double_tree})
      for (int n : {2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 100}) {
        const std::int64_t elements = 1 << 20;
        const auto plan = schedule(move, algorithm, elements, nodes(n, 0), 1);
        std::int64_t total = 0;
        for (int r = 0; r < plan->rounds(); ++r) {
          std::vector<Transfer> all;
          plan->round(r, -1, all);
          std::vector<int> sends(static_cast<std::size_t>(n), 0), receives(sends);
          for (const Transfer& t : all) {
            EXPECT_LE(++sends[static_cast<std::size_t>(t.from)], 1);
            EXPECT_LE(++receives[static_cast<std::size_t>(t.to)], 1);
            total += t.end - t.begin;
          }
        }
        EXPECT_EQ(total, (n - 1) * elements * (move == program::Move::all_reduce ? 2 : 1));
      }
}

// Pipelines deliver every piece to the last member, and no member sends a piece before it has it.
TEST(Schedules, PiecesArriveBeforeTheyAreSent) {
  for (program::Algorithm algorithm :
       {program::Algorithm::ring, program::Algorithm::double_tree, program::Algorithm::hierarchical,
        program::Algorithm::direct})
    for (int n : {2, 3, 4, 7, 8, 12, 33}) {
      const std::int64_t elements = 400001;
      const auto node_of = nodes(n, 1);
      const auto plan = schedule(program::Move::broadcast, algorithm, elements, node_of, n - 1);
      std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> have(
          static_cast<std::size_t>(n));
      std::vector<std::int64_t> amount(static_cast<std::size_t>(n), 0);
      for (int r = 0; r < plan->rounds(); ++r) {
        std::vector<Transfer> all;
        plan->round(r, -1, all);
        for (const Transfer& t : all)
          if (t.from != n - 1) {
            EXPECT_THAT(have[static_cast<std::size_t>(t.from)],
                        testing::Contains(std::pair(t.begin, t.end)));
          }
        for (const Transfer& t : all) {
          have[static_cast<std::size_t>(t.to)].emplace_back(t.begin, t.end);
          amount[static_cast<std::size_t>(t.to)] += t.end - t.begin;
        }
      }
      for (int i = 0; i < n - 1; ++i) EXPECT_EQ(amount[static_cast<std::size_t>(i)], elements);
      EXPECT_EQ(amount[static_cast<std::size_t>(n - 1)], 0);
    }
}

TEST(Schedules, RingMovesTwoNMinusOneTimesNTransfers) {
  for (int n : sizes) {
    const auto plan =
        schedule(program::Move::all_reduce, program::Algorithm::ring, 1000, nodes(n, 0));
    std::vector<Transfer> all;
    for (int r = 0; r < plan->rounds(); ++r) plan->round(r, -1, all);
    EXPECT_EQ(all.size(), static_cast<std::size_t>(2 * n * (n - 1)));
  }
}

TEST(Schedules, BytesEqualClosedForms) {
  for (int n : sizes) {
    const std::int64_t e = 1000 * n;
    auto sent = [&](program::Move move, program::Algorithm algorithm, int member) {
      return schedule(move, algorithm, e, nodes(n, 0))->sent(member);
    };
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(sent(program::Move::all_reduce, program::Algorithm::ring, i), 2 * (n - 1) * e / n);
      EXPECT_EQ(sent(program::Move::reduce_scatter, program::Algorithm::ring, i), (n - 1) * e / n);
      EXPECT_EQ(sent(program::Move::all_gather, program::Algorithm::ring, i), (n - 1) * e / n);
      EXPECT_EQ(sent(program::Move::reduce_scatter, program::Algorithm::direct, i),
                (n - 1) * e / n);
      EXPECT_EQ(sent(program::Move::all_gather, program::Algorithm::direct, i), (n - 1) * e / n);
      if (std::has_single_bit(static_cast<unsigned>(n))) {
        EXPECT_EQ(sent(program::Move::all_reduce, program::Algorithm::halving_doubling, i),
                  2 * (n - 1) * e / n);
        EXPECT_EQ(sent(program::Move::reduce_scatter, program::Algorithm::halving_doubling, i),
                  (n - 1) * e / n);
        EXPECT_EQ(sent(program::Move::all_gather, program::Algorithm::halving_doubling, i),
                  (n - 1) * e / n);
      }
    }
    EXPECT_EQ(sent(program::Move::all_reduce, program::Algorithm::direct, 0), (n - 1) * e);
    if (n > 1) {
      EXPECT_EQ(sent(program::Move::all_reduce, program::Algorithm::direct, 1), e);
    }
  }
}

// How long sent() takes is measured by bench/collectives_bench.cpp.
TEST(Schedules, BytesOfManyMembersAreTold) {
  const int n = 8'191;  // neither a power of two nor whole nodes
  for (program::Move move : moves)
    for (program::Algorithm algorithm : algorithms) {
      if (!serves(move, algorithm)) continue;
      std::vector<Id> node_of;
      for (int i = 0; i < n; ++i) node_of.push_back(static_cast<Id>(i / 8));
      const std::int64_t e = std::int64_t{n} * 64;
      const auto plan = schedule(move, algorithm, e, node_of);
      std::int64_t sent = 0;
      for (int i = 0; i < n; ++i) sent += plan->sent(i);
      const bool parts = move == program::Move::reduce_scatter ||
                         move == program::Move::all_gather || move == program::Move::all_to_all;
      EXPECT_GE(sent, (n - 1) * (parts ? e / n : e));
    }
}

// The product of 10^15 elements and a million members exceeds 64 bits.
TEST(Schedules, PartsOfLargeTensorsDoNotOverflow) {
  const std::int64_t e = 1'000'000'000'000'000;
  const auto plan =
      schedule(program::Move::reduce_scatter, program::Algorithm::ring, e, nodes(1 << 20, 0));
  for (int member : {0, 1, 999'999, (1 << 20) - 1}) {
    EXPECT_GE(plan->sent(member), e - e / (1 << 20) - 1);
    EXPECT_LE(plan->sent(member), e - e / (1 << 20));
  }
}

// K nodes of L members: a member sends (L-1)/L of the tensor inside its node and (K-1)/K of a 1/L
// share across nodes; in an all-reduce twice each.
TEST(Schedules, HierarchicalBytesAcrossNodes) {
  const std::int64_t e = 16 * 1000;
  for (program::Move move :
       {program::Move::all_reduce, program::Move::reduce_scatter, program::Move::all_gather}) {
    const auto node_of = nodes(16, 1);
    const auto plan = schedule(move, program::Algorithm::hierarchical, e, node_of);
    std::int64_t inside = 0, across = 0;
    std::vector<Transfer> all;
    for (int r = 0; r < plan->rounds(); ++r) plan->round(r, -1, all);
    for (const Transfer& t : all)
      (node_of[static_cast<std::size_t>(t.from)] == node_of[static_cast<std::size_t>(t.to)]
           ? inside
           : across) += t.end - t.begin;
    const int twice = move == program::Move::all_reduce ? 2 : 1;
    EXPECT_EQ(inside, twice * 16 * (e * 3 / 4));
    EXPECT_EQ(across, twice * 16 * (e / 4 * 3 / 4));
  }
}

// From 2 log2 n to 2 (log2 n + 1) rounds, because the root is above both trees.
TEST(Schedules, TreeLatencyIsLogarithmic) {
  for (int n : {2, 4, 8, 16, 64, 256, 1024, 4096}) {
    const auto plan =
        schedule(program::Move::all_reduce, program::Algorithm::double_tree, 100, nodes(n, 0));
    EXPECT_LE(plan->rounds(), 2 * (std::log2(n) + 1));
    EXPECT_GE(plan->rounds(), 2 * (n == 2 ? 1 : std::log2(n)));
  }
}

// Every round is in one entry of distinct(), whose round has the same multiset of (from, to) and
// sizes that differ by at most one element.
TEST(Schedules, DistinctRoundsStandForAll) {
  for (program::Move move : moves)
    for (program::Algorithm algorithm : algorithms)
      for (int n : {2, 3, 4, 6, 8, 16, 33})
        for (int kind : {0, 1, 2})
          for (std::int64_t elements : {std::int64_t{5000}, std::int64_t{3000000}}) {
            if (!serves(move, algorithm)) continue;
            if (move == program::Move::all_to_all) elements -= elements % n;
            const auto plan = schedule(move, algorithm, elements, nodes(n, kind));
            int rounds = 0;
            double represented = 0, actual = 0;
            std::int64_t largest = 0;
            std::size_t transfers = 0;
            auto volume = [&](int r) {
              std::vector<Transfer> all;
              plan->round(r, -1, all);
              std::int64_t v = 0;
              for (const Transfer& t : all) v += t.end - t.begin;
              largest = std::max(largest, v);
              transfers = std::max(transfers, all.size());
              return static_cast<double>(v);
            };
            for (auto [r, times] : plan->distinct()) {
              rounds += times;
              represented += times * volume(r);
            }
            for (int r = 0; r < plan->rounds(); ++r) actual += volume(r);
            EXPECT_EQ(rounds, plan->rounds());
            EXPECT_NEAR(represented, actual,
                        static_cast<double>(plan->rounds()) * static_cast<double>(transfers));
          }
}

TEST(Schedules, ChooseByPayloadAndPlace) {
  using enum program::Algorithm;
  const std::int64_t large = 100 << 20, small = 1 << 10;
  EXPECT_EQ(choose(program::Move::all_reduce, large, nodes(8, 0)), ring);
  EXPECT_EQ(choose(program::Move::all_reduce, large, nodes(8, 1)), hierarchical);
  EXPECT_EQ(choose(program::Move::all_reduce, small, nodes(8, 1)), halving_doubling);
  EXPECT_EQ(choose(program::Move::broadcast, small, nodes(8, 1)), double_tree);
  EXPECT_EQ(choose(program::Move::all_gather, small, nodes(8, 1)), halving_doubling);
  EXPECT_EQ(choose(program::Move::all_reduce, small, nodes(2, 0)), ring);
  EXPECT_EQ(choose(program::Move::all_to_all, small, nodes(8, 1)), direct);
  for (program::Move move : moves)
    for (std::int64_t bytes : {std::int64_t{0}, small, large})
      for (int n : sizes) EXPECT_TRUE(serves(move, choose(move, bytes, nodes(n, 1))));
}

TEST(Schedules, AMoveThatAnAlgorithmDoesNotServeIsLeftToTheFastest) {
  EXPECT_EQ(algorithm_for(program::Move::all_reduce, program::Algorithm::double_tree),
            program::Algorithm::double_tree);
  EXPECT_EQ(algorithm_for(program::Move::all_gather, program::Algorithm::double_tree),
            program::Algorithm::automatic);
  EXPECT_EQ(algorithm_for(program::Move::reduce_scatter, program::Algorithm::double_tree),
            program::Algorithm::automatic);
  EXPECT_EQ(algorithm_for(program::Move::broadcast, program::Algorithm::halving_doubling),
            program::Algorithm::automatic);
  EXPECT_EQ(algorithm_for(program::Move::reduce_scatter, program::Algorithm::direct),
            program::Algorithm::direct);
}

TEST(Schedules, ErrorNamesWhatServes) {
  try {
    schedule(program::Move::all_gather, program::Algorithm::double_tree, 8, nodes(4, 0));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "\"double_tree\" does not serve all_gather; ring, halving_doubling, hierarchical "
                 "and direct do");
  }
}

TEST(Schedules, AnAllToAllIsDirectAndOfEqualParts) {
  const auto refusal = [](program::Algorithm algorithm, std::int64_t elements) {
    try {
      schedule(program::Move::all_to_all, algorithm, elements, nodes(4, 0));
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(program::Algorithm::direct, 8), "");
  EXPECT_EQ(refusal(program::Algorithm::ring, 8),
            "\"ring\" does not serve all_to_all; direct does");
  EXPECT_EQ(refusal(program::Algorithm::direct, 10),
            "an all_to_all of 10 elements over 4 members: their parts must be equal; 12 elements "
            "would do");
  EXPECT_EQ(algorithm_for(program::Move::all_to_all, program::Algorithm::ring),
            program::Algorithm::automatic);
}

}  // namespace
}  // namespace rehearse::collectives
