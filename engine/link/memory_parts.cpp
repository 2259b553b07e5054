#include "engine/link/memory_parts.h"

#include <algorithm>

namespace rehearse::link {
namespace {

Part part_of(program::Slot slot) {
  using enum program::Slot;
  switch (slot) {
    case param:
      return Part::weights;
    case grad:
      return Part::gradients;
    case moment1:
    case moment2:
    case master:
    case anchor:
    case outer_moment:
      return Part::moments;
    case input:
    case output:
    case saved:
    case grad_output:
    case grad_input:
    case stats:
      return Part::activations;
    default:
      return Part::communication;
  }
}

/// Whether the op moves values without a change of what they are: not into packets.
bool moves(const program::Work& work) {
  return std::holds_alternative<program::Collective>(work) ||
         std::holds_alternative<program::Send>(work) || std::holds_alternative<program::Recv>(work);
}

}  // namespace

std::vector<Part> parts_of(const program::Role& role) {
  std::vector<Part> parts(role.storages.size(), Part::communication);
  const auto part = [&](const program::Ref& ref) -> Part& {
    return parts[role.views[ref.view].storage];
  };
  for (const program::Op& op : role.ops) {
    const bool computes = std::holds_alternative<program::Compute>(op.work);
    for (const program::Ref& ref : op.refs) {
      const Part of = part_of(ref.slot);
      // What the parts of attention exchange are its activations. A gradient that is also sent is a
      // gradient.
      part(ref) =
          std::min(part(ref), computes && of == Part::communication ? Part::activations : of);
    }
  }
  // The result of a sum that is kept and gathered again is what is gathered.
  for (const program::Op& op : role.ops) {
    if (!moves(op.work)) continue;
    const bool activation = std::ranges::any_of(
        op.refs, [&](const program::Ref& ref) { return part(ref) == Part::activations; });
    for (const program::Ref& ref : op.refs)
      if (activation) part(ref) = std::min(part(ref), Part::activations);
  }
  return parts;
}

}  // namespace rehearse::link
