// The arithmetic by which ranks that train apart average their weights: one pass over flat plain
// fp32 memory, element by element.
#pragma once
#include <cstdint>
#include <span>

#include "engine/program/program.h"

namespace rehearse::runtime {

/// A kernel (weigh, drift, outer_step or mix; program::KernelKind has the formulas) and its
/// operands; null: it has none.
struct Average {
  program::KernelKind kind = program::KernelKind::weigh;
  float scale = 1, momentum = 0;
  const float* share = nullptr;                // one number
  std::span<const float* const> sources = {};  // one; of mix: any number, added in their order
  float* anchor = nullptr;                     // drift only reads it
  float* moment = nullptr;
  float* target = nullptr;
  std::int64_t elements = 0;
};
void average(const Average& work);

}  // namespace rehearse::runtime
