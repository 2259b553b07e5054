// What tests of schedules run over: moves, algorithms, and groups of members on nodes.
#pragma once
#include <vector>

#include "engine/collectives/schedule.h"

namespace rehearse::collectives {

inline constexpr program::Move moves[] = {program::Move::all_reduce, program::Move::reduce_scatter,
                                          program::Move::all_gather, program::Move::broadcast,
                                          program::Move::reduce,     program::Move::all_to_all};
inline constexpr program::Algorithm algorithms[] = {program::Algorithm::ring,
                                                    program::Algorithm::double_tree,
                                                    program::Algorithm::halving_doubling,
                                                    program::Algorithm::hierarchical,
                                                    program::Algorithm::direct,
                                                    program::Algorithm::in_network};
inline constexpr int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 33};

/// The node of each member. Kinds: 0: all on one node; 1: nodes of four; 2: up to five nodes of
/// unequal sizes, whose members are interleaved.
inline std::vector<Id> nodes(int n, int kind) {
  std::vector<Id> out;
  for (int i = 0; i < n; ++i) {
    if (kind == 0) out.push_back(0);
    if (kind == 1) out.push_back(static_cast<Id>(i / 4));
    if (kind == 2) out.push_back(static_cast<Id>((i * i + i / 3) % 5));
  }
  return out;
}

inline bool serves(program::Move move, program::Algorithm algorithm) {
  if (move == program::Move::all_to_all) return algorithm == program::Algorithm::direct;
  if (algorithm == program::Algorithm::double_tree || algorithm == program::Algorithm::in_network)
    return move != program::Move::reduce_scatter && move != program::Move::all_gather;
  if (algorithm == program::Algorithm::halving_doubling)
    return move != program::Move::broadcast && move != program::Move::reduce;
  return true;
}

}  // namespace rehearse::collectives
