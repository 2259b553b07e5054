#include "engine/costs/tensor_split.h"

#include <algorithm>

#include "engine/model/context.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::costs {

model::TensorSplit tensor_split(const program::Program& p) {
  model::TensorSplit out = 1;
  program::Axes axes = 0;
  for (std::size_t a = 0; a < p.mesh.size(); ++a) {
    if (p.mesh[a].name == "tp") out.ranks = p.mesh[a].size, axes = program::Axes{1} << a;
    if (p.mesh[a].name == "cp") out.context = p.mesh[a].size;
  }
  const auto gathers = [&](const program::Op& op) {
    const auto* work = std::get_if<program::Collective>(&op.work);
    return work != nullptr && work->move == program::Move::all_gather &&
           p.channels[work->channel].group.axes == axes;
  };
  const auto any_op = [&](const auto& is) {
    return std::any_of(p.roles.begin(), p.roles.end(), [&](const program::Role& role) {
      return std::any_of(role.ops.begin(), role.ops.end(), is);
    });
  };
  out.sequence = out.ranks > 1 && any_op(gathers);
  out.heads =
      out.context > 1 && any_op([](const program::Op& op) {
        const auto* work = std::get_if<program::Compute>(&op.work);
        return work != nullptr && work->part == program::Part::attend && work->block == none;
      });
  return out;
}

model::Piece piece_of(const program::Program& p, const program::Role& role,
                      const program::Compute& compute, const model::ModelSpec& model) {
  model::Piece piece{.part = compute.part};
  if (compute.part != program::Part::attend) return piece;
  piece.keys = attended(model);
  if (compute.block == none) return piece;
  const bool causal = model.family != model::Family::bert;
  const tensors::GroupPlace place = tensors::place_along(p, "cp", role.ranks.front());
  const std::int64_t tokens = model.seq_len / place.count;
  const int owner = static_cast<int>(compute.block);
  piece.keys = counted_keys(model::attended_block(tokens, place.index, owner, cut_of(p), causal),
                            tokens, causal);
  piece.adds = owner != place.index;
  return piece;
}

}  // namespace rehearse::costs
