#include "engine/model/context.h"

namespace rehearse::model {

std::vector<TokenRun> tokens_of(std::int64_t seq_len, int ranks, int place, program::Cut cut) {
  const std::int64_t tokens = seq_len / ranks;
  if (cut == program::Cut::contiguous) return {{place * tokens, tokens}};
  const std::int64_t half = tokens / 2;
  return {{place * half, half}, {(2 * ranks - 1 - place) * half, half}};
}

AttendedBlock attended_block(std::int64_t tokens, int place, int owner, program::Cut cut,
                             bool causal) {
  const TokenRun all{0, tokens}, first{0, tokens / 2}, second{tokens / 2, tokens - tokens / 2};
  if (!causal) return {all, all};
  if (owner == place) return {all, all, true};
  // A zigzag block's first half is before all of a later rank's tokens, and both halves are before
  // the second half of an earlier rank's tokens.
  if (owner < place) return {all, cut == program::Cut::zigzag ? first : all};
  if (cut == program::Cut::zigzag) return {second, all};
  return {};
}

double counted_keys(const AttendedBlock& block, std::int64_t tokens, bool causal) {
  const double pairs = static_cast<double>(block.queries.size) *
                       static_cast<double>(block.keys.size) / static_cast<double>(tokens);
  return causal && !block.causal ? 2 * pairs : pairs;
}

}  // namespace rehearse::model
