// From the gradients that backward has left to new weights, as far as methods have it in common:
// sums over tensor ranks and tied copies, the global norm, updates, and gathering what was sharded.
#pragma once
#include "engine/methods/lowering/stage.h"

namespace rehearse::methods {

/// Sums over tp what every tensor rank holds whole, and tied copies over their stages.
void reduce_model_axes(Stage& stage, Bucket& bucket, int index, int shift);

/// The sum of squares of the sums of all buckets into "norm", over pp, tp and the axes of `shard`;
/// only when the plan needs it.
void emit_norm(Stage& stage, program::Layout shard, int shift);

/// Observes a bucket's sum where the plan says so, and updates its weights by it. `shard`: the part
/// of both that this rank has.
void emit_update(Stage& stage, const Bucket& bucket, program::Layout shard, int shift);

/// Norm, updates of all buckets and the loss scale.
void update_all(Stage& stage, program::Layout shard, int shift);

/// Gathers all ranks' updated shards into whole weights, in the order in which the next forward
/// asks for them, so that it starts after the first.
void gather_weights(Stage& stage, int shift);
/// A gather over the data-parallel ranks, on a channel of its own.
program::Collective gather(Stage& stage);

}  // namespace rehearse::methods
