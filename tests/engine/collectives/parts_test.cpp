// Gather and scatter: which part goes where, and how many elements members send.
#include <gtest/gtest.h>

#include <tuple>

#include "engine/base/errors.h"
#include "engine/collectives/schedule.h"

namespace rehearse::collectives {
namespace {

std::vector<Id> on_one_node(int n) { return std::vector<Id>(static_cast<std::size_t>(n), 0); }

TEST(Schedules, AGatherBringsEachPartToTheRootAndAScatterAwayFromIt) {
  for (const int n : {2, 3, 4, 7, 16})
    for (const int root : {0, n / 2, n - 1})
      for (const std::int64_t elements : {10, 32}) {
        const auto part = [&](int i) { return i * elements / n; };
        const auto gather = schedule(program::Move::gather, program::Algorithm::direct, elements,
                                     on_one_node(n), root);
        const auto scatter = schedule(program::Move::scatter, program::Algorithm::direct, elements,
                                      on_one_node(n), root);
        ASSERT_EQ(gather->rounds(), 1);
        ASSERT_EQ(scatter->rounds(), 1);
        std::vector<Transfer> in, out;
        gather->round(0, -1, in);
        scatter->round(0, -1, out);
        ASSERT_EQ(in.size(), out.size());
        std::int64_t all = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
          EXPECT_EQ(in[i].to, root);
          EXPECT_EQ(out[i].from, root);
          const int member = in[i].from;
          EXPECT_EQ(out[i].to, member);
          EXPECT_EQ(std::tuple(in[i].begin, in[i].begin + in[i].shift, in[i].end + in[i].shift),
                    std::tuple(0, part(member), part(member + 1)));
          EXPECT_EQ(std::tuple(out[i].begin, out[i].end, out[i].begin + out[i].shift),
                    std::tuple(part(member), part(member + 1), 0));
          EXPECT_FALSE(in[i].add || out[i].add);
          EXPECT_EQ(gather->sent(member), in[i].end - in[i].begin);
          EXPECT_EQ(scatter->sent(member), 0);
          all += in[i].end - in[i].begin;
          std::vector<Transfer> mine;
          gather->round(0, member, mine);
          scatter->round(0, member, mine);
          ASSERT_EQ(mine.size(), 2U);
          EXPECT_EQ(std::tuple(mine[0].from, mine[1].to), std::tuple(member, member));
        }
        EXPECT_EQ(all, elements - (part(root + 1) - part(root)));
        EXPECT_EQ(gather->sent(root), 0);
        EXPECT_EQ(scatter->sent(root), all);
      }
  EXPECT_EQ(choose(program::Move::gather, 1 << 10, on_one_node(8)), program::Algorithm::direct);
  EXPECT_THROW(schedule(program::Move::scatter, program::Algorithm::ring, 8, on_one_node(4), 1),
               InputError);
}

}  // namespace
}  // namespace rehearse::collectives
