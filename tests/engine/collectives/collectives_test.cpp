// Runs every schedule on arrays: the result is right, no transfer reads data that has not arrived
// yet, no member receives into elements that it sends, and bytes sent equal closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/collectives/schedule.h"

namespace rehearse::collectives {
namespace {

constexpr program::Move moves[] = {program::Move::all_reduce, program::Move::reduce_scatter,
                                   program::Move::all_gather, program::Move::broadcast,
                                   program::Move::reduce,     program::Move::all_to_all};
constexpr program::Algorithm algorithms[] = {program::Algorithm::ring,
                                             program::Algorithm::double_tree,
                                             program::Algorithm::halving_doubling,
                                             program::Algorithm::hierarchical,
                                             program::Algorithm::direct,
                                             program::Algorithm::in_network};
constexpr int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 33};

// The node of each member. Kinds: 0: all on one node; 1: nodes of four; 2: up to five nodes of
// unequal sizes, whose members are interleaved.
std::vector<Id> nodes(int n, int kind) {
  std::vector<Id> out;
  for (int i = 0; i < n; ++i) {
    if (kind == 0) out.push_back(0);
    if (kind == 1) out.push_back(static_cast<Id>(i / 4));
    if (kind == 2) out.push_back(static_cast<Id>((i * i + i / 3) % 5));
  }
  return out;
}

bool serves(program::Move move, program::Algorithm algorithm) {
  if (move == program::Move::all_to_all) return algorithm == program::Algorithm::direct;
  if (algorithm == program::Algorithm::double_tree || algorithm == program::Algorithm::in_network)
    return move != program::Move::reduce_scatter && move != program::Move::all_gather;
  if (algorithm == program::Algorithm::halving_doubling)
    return move != program::Move::broadcast && move != program::Move::reduce;
  return true;
}

/// Element k of part j of member i's tensor becomes element k of part i of member j's.
void play_all_to_all(int n, int kind, std::int64_t part) {
  const auto plan =
      schedule(program::Move::all_to_all, program::Algorithm::direct, n * part, nodes(n, kind));
  ASSERT_EQ(plan->members(), n);
  using Pair = std::pair<int, std::int64_t>;  // member, element
  std::vector<std::vector<Pair>> got(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    got[static_cast<std::size_t>(i)].assign(static_cast<std::size_t>(n * part), {-1, -1});
    for (std::int64_t k = 0; k < part; ++k)  // a member copies its own part itself
      got[static_cast<std::size_t>(i)][static_cast<std::size_t>(i * part + k)] = {i, i * part + k};
  }
  std::vector<std::int64_t> sent(static_cast<std::size_t>(n), 0);
  for (int r = 0; r < plan->rounds(); ++r) {
    std::vector<Transfer> all, by_member;
    plan->round(r, -1, all);
    for (int m = 0; m < n; ++m) plan->round(r, m, by_member);
    EXPECT_EQ(by_member.size(), 2 * all.size());
    std::vector<int> receives(static_cast<std::size_t>(n), 0);
    for (const Transfer& t : all) {
      ASSERT_NE(t.from, t.to);
      EXPECT_FALSE(t.add);
      EXPECT_EQ(++receives[static_cast<std::size_t>(t.to)], 1) << "a round has one sender each";
      sent[static_cast<std::size_t>(t.from)] += t.end - t.begin;
      for (std::int64_t e = t.begin; e < t.end; ++e) {
        Pair& cell =
            got.at(static_cast<std::size_t>(t.to)).at(static_cast<std::size_t>(e + t.shift));
        EXPECT_EQ(cell.first, -1) << "an element is received twice";
        cell = {t.from, e};
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(plan->sent(i), (n - 1) * part);
    EXPECT_EQ(sent[static_cast<std::size_t>(i)], (n - 1) * part);
    for (int from = 0; from < n; ++from)
      for (std::int64_t k = 0; k < part; ++k)
        ASSERT_EQ(got[static_cast<std::size_t>(i)][static_cast<std::size_t>(from * part + k)],
                  Pair(from, i * part + k));
  }
}

TEST(Schedules, ARotateSendsEachTensorSoManyPlacesOn) {
  for (const int n : {2, 3, 4, 7, 16})
    for (int distance = 1; distance < n; ++distance) {
      const auto plan =
          schedule(program::Move::rotate, program::Algorithm::direct, 10, nodes(n, 1), distance);
      ASSERT_EQ(plan->rounds(), 1);
      std::vector<Transfer> all;
      plan->round(0, -1, all);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(n));
      for (const Transfer& t : all) {
        EXPECT_EQ(t.to, (t.from + distance) % n);
        EXPECT_EQ(std::tuple(t.begin, t.end, t.shift, t.add), std::tuple(0, 10, 0, false));
      }
      for (int m = 0; m < n; ++m) {
        std::vector<Transfer> mine;
        plan->round(0, m, mine);
        ASSERT_EQ(mine.size(), 2U);
        EXPECT_EQ(mine[0].from, m);
        EXPECT_EQ(mine[1].to, m);
        EXPECT_EQ(plan->sent(m), 10);
      }
    }
  EXPECT_EQ(
      schedule(program::Move::rotate, program::Algorithm::direct, 10, nodes(1, 0), 0)->rounds(), 0);
  EXPECT_THROW(schedule(program::Move::rotate, program::Algorithm::ring, 10, nodes(4, 0), 1),
               InputError);
}

// The value of an element: how often it contains each member's contribution.
struct Cell {
  std::vector<int> count;  // by contributor; empty: no data yet
};
using Tensor = std::vector<Cell>;

void play(program::Move move, program::Algorithm algorithm, int n, int kind,
          std::int64_t elements) {
  const auto node_of = nodes(n, kind);
  const int root = (move == program::Move::broadcast || move == program::Move::reduce) ? n / 2 : 0;
  if (!serves(move, algorithm)) {
    EXPECT_THROW(schedule(move, algorithm, elements, node_of, root), InputError);
    return;
  }
  if (move == program::Move::all_to_all) return play_all_to_all(n, kind, elements);
  const auto plan = schedule(move, algorithm, elements, node_of, root);
  ASSERT_EQ(plan->members(), n);
  auto part = [&](int i) { return i * elements / n; };
  const auto size = static_cast<std::size_t>(elements);
  const auto count = static_cast<std::size_t>(n);

  std::vector<Tensor> state(count, Tensor(size));
  for (int i = 0; i < n; ++i)
    for (std::int64_t e = 0; e < elements; ++e) {
      const bool own = move == program::Move::all_gather  ? part(i) <= e && e < part(i + 1)
                       : move == program::Move::broadcast ? i == root
                                                          : true;
      if (!own) continue;
      auto& cell = state[static_cast<std::size_t>(i)][static_cast<std::size_t>(e)];
      cell.count.assign(count, 0);
      cell.count[static_cast<std::size_t>(i)] = 1;
    }
  std::vector<std::int64_t> sent(count, 0);
  for (int r = 0; r < plan->rounds(); ++r) {
    std::vector<Transfer> all;
    plan->round(r, -1, all);
    std::vector<std::vector<Transfer>> mine(count);
    const auto before = state;
    for (const Transfer& t : all) {
      ASSERT_NE(t.from, t.to);
      ASSERT_LT(t.begin, t.end);
      sent[static_cast<std::size_t>(t.from)] += t.end - t.begin;
      mine[static_cast<std::size_t>(t.from)].push_back(t);
      mine[static_cast<std::size_t>(t.to)].push_back(t);
      for (auto e = static_cast<std::size_t>(t.begin); e < static_cast<std::size_t>(t.end); ++e) {
        const Cell& from = before[static_cast<std::size_t>(t.from)][e];
        Cell& to = state[static_cast<std::size_t>(t.to)][e];
        ASSERT_FALSE(from.count.empty()) << "round " << r << " sends what is not there";
        if (t.add) {
          ASSERT_FALSE(to.count.empty()) << "round " << r << " adds to what is not there";
          for (std::size_t c = 0; c < count; ++c) to.count[c] += from.count[c];
        } else {
          to = from;
        }
      }
    }
    for (int m = 0; m < n; ++m) {
      std::vector<Transfer> own;
      plan->round(r, m, own);
      auto key = [](const Transfer& t) { return std::tuple(t.from, t.to, t.begin, t.end, t.add); };
      std::vector<decltype(key({}))> a, b;
      for (const auto& t : own) a.push_back(key(t));
      for (const auto& t : mine[static_cast<std::size_t>(m)]) b.push_back(key(t));
      ASSERT_THAT(a, testing::UnorderedElementsAreArray(b)) << "member " << m << " round " << r;
      for (const auto& s : own)
        for (const auto& t : own)
          if (s.from == m && t.to == m) {
            ASSERT_TRUE(s.end <= t.begin || t.end <= s.begin)
                << "member " << m << " receives into what it sends in round " << r;
          }
    }
  }
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(plan->sent(i), sent[static_cast<std::size_t>(i)]);
    for (std::int64_t e = 0; e < elements; ++e) {
      int owner = 0;
      while (part(owner + 1) <= e) ++owner;
      std::vector<int> want(count, 0);
      if (move == program::Move::all_gather) want[static_cast<std::size_t>(owner)] = 1;
      if (move == program::Move::broadcast) want[static_cast<std::size_t>(root)] = 1;
      if (move == program::Move::all_reduce || move == program::Move::reduce ||
          move == program::Move::reduce_scatter)
        want.assign(count, 1);
      if ((move == program::Move::reduce && i != root) ||
          (move == program::Move::reduce_scatter && i != owner))
        continue;
      ASSERT_EQ(state[static_cast<std::size_t>(i)][static_cast<std::size_t>(e)].count, want)
          << "member " << i << " element " << e;
    }
  }
}

class Collectives : public testing::TestWithParam<std::tuple<program::Move, program::Algorithm>> {};

TEST_P(Collectives, PlayedOnArrays) {
  const auto [move, algorithm] = GetParam();
  for (int n : sizes)
    for (int kind : {0, 1, 2})
      for (std::int64_t elements : {3, 101}) {
        SCOPED_TRACE(testing::Message()
                     << n << " members, nodes of kind " << kind << ", " << elements << " elements");
        play(move, algorithm, n, kind, elements);
        if (HasFatalFailure()) return;
      }
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         testing::Combine(testing::ValuesIn(moves), testing::ValuesIn(algorithms)));

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
