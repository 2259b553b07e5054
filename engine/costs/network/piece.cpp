#include "engine/costs/network/piece.h"

#include "engine/model/context.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::costs {

model::Piece piece_of(const program::Program& p, const program::Role& role,
                      const program::Compute& compute, const model::ModelSpec& model) {
  model::Piece piece{.part = compute.part, .first = compute.microbatch == 0};
  if (compute.part != program::Part::attend) return piece;
  piece.keys = attention_span(model, model.segments[compute.segment].layer);
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
