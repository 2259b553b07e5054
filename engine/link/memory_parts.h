// What the memory of a rank is for.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::link {

/// weights: also gathered ones. moments: all of the optimizer's state, with fp32 copies of weights.
/// activations: with boundaries, and their gradients. workspace: of one op, while it runs.
/// communication: packets and error feedback. batch: tokens and labels. unshared: bytes that are
/// free when most is in use, because the order of ops does not ensure that another value may have
/// them.
enum class Part : std::uint8_t {
  weights,
  gradients,
  moments,
  activations,
  workspace,
  communication,
  batch,
  unshared
};
constexpr auto spellings(Part) {
  return std::to_array<const char*>({"weights", "gradients", "moments", "activations", "workspace",
                                     "communication", "batch", "unshared"});
}
/// Bytes of each part.
using Parts = std::array<std::int64_t, 8>;
constexpr std::int64_t& at(Parts& parts, Part part) {
  return parts[static_cast<std::size_t>(part)];
}

/// By storage: its part, which follows from the slots in which ops refer to it.
std::vector<Part> parts_of(const program::Role& role);

}  // namespace rehearse::link
