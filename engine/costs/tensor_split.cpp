#include "engine/costs/tensor_split.h"

#include <algorithm>

namespace rehearse::costs {

model::TensorSplit tensor_split(const program::Program& p) {
  model::TensorSplit out = 1;
  program::Axes axes = 0;
  for (std::size_t a = 0; a < p.mesh.size(); ++a)
    if (p.mesh[a].name == "tp") out.ranks = p.mesh[a].size, axes = program::Axes{1} << a;
  const auto gathers = [&](const program::Op& op) {
    const auto* work = std::get_if<program::Collective>(&op.work);
    return work != nullptr && work->move == program::Move::all_gather &&
           p.channels[work->channel].group.axes == axes;
  };
  out.sequence =
      out.ranks > 1 && std::any_of(p.roles.begin(), p.roles.end(), [&](const program::Role& role) {
        return std::any_of(role.ops.begin(), role.ops.end(), gathers);
      });
  return out;
}

}  // namespace rehearse::costs
