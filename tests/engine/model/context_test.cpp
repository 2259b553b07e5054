// Which tokens ranks have, and how many pairs of tokens each of them attends to.
#include "engine/model/context.h"

#include <gtest/gtest.h>

#include <set>

namespace rehearse::model {
namespace {

using program::Cut;

/// The tokens of a rank, one by one.
std::vector<std::int64_t> listed(const std::vector<TokenRun>& runs) {
  std::vector<std::int64_t> out;
  for (const TokenRun& run : runs)
    for (std::int64_t i = 0; i < run.size; ++i) out.push_back(run.begin + i);
  return out;
}

TEST(Context, EachTokenHasOneRank) {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const Cut cut : {Cut::contiguous, Cut::zigzag}) {
      std::multiset<std::int64_t> all;
      for (int place = 0; place < ranks; ++place) {
        const auto tokens = listed(tokens_of(48, ranks, place, cut));
        EXPECT_EQ(tokens.size(), 48U / static_cast<unsigned>(ranks));
        EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
        all.insert(tokens.begin(), tokens.end());
      }
      EXPECT_EQ(all.size(), 48U);
      EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 48U);
    }
  EXPECT_EQ(tokens_of(48, 4, 1, Cut::zigzag), (std::vector<TokenRun>{{6, 6}, {36, 6}}));
  EXPECT_EQ(tokens_of(48, 4, 1, Cut::contiguous), (std::vector<TokenRun>{{12, 12}}));
}

/// The blocks' pairs are exactly those of causal attention, each once.
TEST(Context, BlocksHoldThePairsOfCausalAttention) {
  for (const int ranks : {2, 3, 4})
    for (const Cut cut : {Cut::contiguous, Cut::zigzag}) {
      std::multiset<std::pair<std::int64_t, std::int64_t>> seen;
      for (int place = 0; place < ranks; ++place)
        for (int owner = 0; owner < ranks; ++owner) {
          const auto queries = listed(tokens_of(24, ranks, place, cut)),
                     keys = listed(tokens_of(24, ranks, owner, cut));
          const AttendedBlock block = attended_block(24 / ranks, place, owner, cut, true);
          for (std::int64_t q = block.queries.begin; q < block.queries.begin + block.queries.size;
               ++q)
            for (std::int64_t k = block.keys.begin; k < block.keys.begin + block.keys.size; ++k)
              if (!block.causal || k <= q)
                seen.emplace(queries[static_cast<std::size_t>(q)],
                             keys[static_cast<std::size_t>(k)]);
        }
      std::multiset<std::pair<std::int64_t, std::int64_t>> causal;
      for (std::int64_t q = 0; q < 24; ++q)
        for (std::int64_t k = 0; k <= q; ++k) causal.emplace(q, k);
      EXPECT_EQ(seen, causal) << ranks << " ranks, zigzag " << (cut == Cut::zigzag);
    }
}

/// Rank r of n contiguous blocks computes 2 r + 1 of the n^2 half squares, a rank with zigzag
/// blocks n of them; all ranks together what one rank computes of the whole sequence.
TEST(Context, ContiguousBlocksAreUnequalWorkAndZigzagBlocksAreEqual) {
  for (const int ranks : {2, 4, 8}) {
    const std::int64_t tokens = 96 / ranks;
    const auto keys_of_rank = [&](int place, Cut cut, bool causal) {
      double sum = 0;
      for (int owner = 0; owner < ranks; ++owner)
        sum += counted_keys(attended_block(tokens, place, owner, cut, causal), tokens, causal);
      return sum;
    };
    double all = 0;
    for (int place = 0; place < ranks; ++place) {
      EXPECT_DOUBLE_EQ(keys_of_rank(place, Cut::contiguous, true),
                       static_cast<double>((2 * place + 1) * tokens));
      EXPECT_DOUBLE_EQ(keys_of_rank(place, Cut::zigzag, true), 96);
      EXPECT_DOUBLE_EQ(keys_of_rank(place, Cut::contiguous, false), 96);
      all += keys_of_rank(place, Cut::contiguous, true) * static_cast<double>(tokens);
    }
    EXPECT_DOUBLE_EQ(all, 96.0 * 96);
    EXPECT_TRUE(attended_block(tokens, 0, 1, Cut::contiguous, true).empty());
    EXPECT_FALSE(attended_block(tokens, 0, 1, Cut::zigzag, true).empty());
  }
}

}  // namespace
}  // namespace rehearse::model
