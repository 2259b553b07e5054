// Runs every schedule on arrays: the result is right, no transfer reads data that has not arrived
// yet, and no member receives into elements that it sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/collectives/schedule.h"
#include "tests/engine/collectives/members.h"

namespace rehearse::collectives {
namespace {

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

}  // namespace
}  // namespace rehearse::collectives
