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

}  // namespace

std::vector<Part> parts_of(const program::Role& role) {
  std::vector<Part> parts(role.storages.size(), Part::communication);
  for (const program::Op& op : role.ops)
    for (const program::Ref& ref : op.refs) {
      Part& part = parts[role.views[ref.view].storage];
      part = std::min(part, part_of(ref.slot));  // a gradient that is also sent is a gradient
    }
  return parts;
}

}  // namespace rehearse::link
