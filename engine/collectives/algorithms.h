// What the algorithms share, and how `schedule` reaches each of them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/collectives/schedule.h"

namespace rehearse::collectives {

/// Where part i of n begins: i * elements / n, whose product may be too large for 64 bits.
constexpr std::int64_t part(std::int64_t elements, std::int64_t i, std::int64_t n) {
  return elements / n * i + elements % n * i / n;
}

inline void push(std::vector<Transfer>& out, int from, int to, std::int64_t begin, std::int64_t end,
                 bool add) {
  if (begin < end) out.push_back({from, to, begin, end, add});
}

/// Pieces that a pipeline cuts `elements` into: 64 Ki elements each (256 KiB of f32, about NCCL's
/// slice), at most 64, so that filling the pipeline costs little and rounds stay few.
constexpr int pieces(std::int64_t elements) {
  std::int64_t n = (elements + 65535) / 65536;
  return static_cast<int>(n < 1 ? 1 : n > 64 ? 64 : n);
}

/// A broadcast down a tree (or, backwards, a reduction up it), pipelined: the edge into a member of
/// depth d carries piece k in round d - 1 + k. parent[root] = -1.
std::unique_ptr<const Schedule> pipelined_tree(std::vector<int> parent, std::int64_t elements,
                                               bool reduce);

std::unique_ptr<const Schedule> ring(program::Move move, int members, std::int64_t elements,
                                     int root);
std::unique_ptr<const Schedule> double_tree(program::Move move, int members, std::int64_t elements,
                                            int root);
std::unique_ptr<const Schedule> halving_doubling(program::Move move, int members,
                                                 std::int64_t elements);
std::unique_ptr<const Schedule> hierarchical(program::Move move, std::span<const Id> node_of,
                                             std::int64_t elements, int root);
std::unique_ptr<const Schedule> direct(program::Move move, int members, std::int64_t elements,
                                       int root);

}  // namespace rehearse::collectives
