// Context parallelism: which tokens of a sequence each rank of the axis cp has, and which part of
// attention a rank computes for a block of keys and values.
//
//   4 ranks, each a row; columns: whose keys; numbers: pairs (query, key) of causal attention in
//   half squares of a rank's tokens
//
//   contiguous  1 . . .   sum 1      zigzag  1 1 1 1   sum 4
//               2 1 . .       3              1 1 1 1       4
//               2 2 1 .       5              1 1 1 1       4
//               2 2 2 1       7              1 1 1 1       4
//
// So with n contiguous blocks (Liu et al., Ring Attention, 2023), the last rank computes
// (2n - 1) / n of the mean; with zigzag blocks all compute the same.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace rehearse::model {

/// Tokens [begin, begin + size).
struct TokenRun {
  std::int64_t begin = 0, size = 0;
  friend bool operator==(TokenRun, TokenRun) = default;
};

/// The tokens of a sequence that rank `place` of `ranks` has, in the order in which it has them.
/// `ranks`, for zigzag 2 `ranks`, divides seq_len.
std::vector<TokenRun> tokens_of(std::int64_t seq_len, int ranks, int place, program::Cut cut);

/// What a rank computes of attention to a block: these of its queries attend to these of the
/// block's keys, as places among the rank's and the block's tokens. `causal`: a query attends to
/// the keys up to its own place, otherwise to all. No queries: the rank does not attend to the
/// block.
struct AttendedBlock {
  TokenRun queries = {}, keys = {};
  bool causal = false;
  bool empty() const { return queries.size == 0; }
};
/// `tokens`: of a rank; `place`, `owner`: places of the rank, and of the rank whose keys these are,
/// along an axis with this cut. Without `causal`, a token attends to all tokens.
AttendedBlock attended_block(std::int64_t tokens, int place, int owner, program::Cut cut,
                             bool causal);
/// How many keys of the block each of the rank's `tokens` queries attends to, counted as
/// launches.cpp counts causal attention: the half square of keys up to a query's own counts in
/// full.
double counted_keys(const AttendedBlock& block, std::int64_t tokens, bool causal);

}  // namespace rehearse::model
