// Helpers that the algorithms share, and one function per algorithm, which `schedule` calls.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/collectives/schedule.h"

namespace rehearse::collectives {

/// Where part i of n begins: i * elements / n, without overflow of the product.
constexpr std::int64_t part(std::int64_t elements, std::int64_t i, std::int64_t n) {
  return elements / n * i + elements % n * i / n;
}

inline void push(std::vector<Transfer>& out, int from, int to, std::int64_t begin, std::int64_t end,
                 bool add, std::int64_t shift = 0) {
  if (begin < end) out.push_back({from, to, begin, end, add, shift});
}

/// The number of pieces that a pipeline cuts `elements` into: one per 64 Ki elements (256 KiB of
/// f32, about NCCL's slice), at most 64. Many pieces fill the pipeline faster; few need few rounds.
constexpr int pieces(std::int64_t elements) {
  std::int64_t n = (elements + 65535) / 65536;
  return static_cast<int>(n < 1 ? 1 : n > 64 ? 64 : n);
}

/// A pipelined broadcast down a tree: the edge to a member of depth d carries piece k in round
/// d - 1 + k. With `reduce`, a reduction up the tree, whose rounds begin at the deepest members.
/// parent[root] = -1. A chain of four members with three pieces k0, k1, k2:
///
///   round     0    1    2    3    4
///   0 -> 1    k0   k1   k2
///   1 -> 2         k0   k1   k2
///   2 -> 3              k0   k1   k2
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
