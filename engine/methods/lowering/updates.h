// Steps from gradients to new weights that gradient syncs share: sums over tensor ranks and tied
// copies, the global norm, updates, and the gathering of sharded weights.
#pragma once
#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

/// Sums the gradients of groups that tp does not split over tp. `index`: the instance of the
/// gradient.
void reduce_over_tensor_ranks(Stage& stage, Bucket& bucket, int index, int shift);
/// Sums a tied group's gradient, or a shard of it, over the stages that have copies. `after`: the
/// layout of the sum.
void reduce_over_copies(Stage& stage, Id view, int index, program::Layout after, int shift);
/// Both.
void reduce_model_axes(Stage& stage, Bucket& bucket, int index, int shift);

/// Sums the squares of all buckets' summed gradients into "norm", over pp, tp and the axes of
/// `shard`. Does nothing unless the optimizer needs the norm.
void emit_norm(Stage& stage, program::Layout shard, int shift);

/// Updates a bucket's weights by its summed gradient; first observes that gradient if the plan says
/// so. `shard`: the layout of both on this rank. `changed`: as in OptimizerOps::update.
void emit_update(Stage& stage, const Bucket& bucket, program::Layout shard, int shift,
                 program::Update how = {}, Id changed = none);

/// emit_norm, emit_update for all buckets, and the loss scale.
void update_all(Stage& stage, program::Layout shard, int shift);

/// All-gathers the updated shards into whole weights, in the order in which the next forward reads
/// them. So that forward can start after the first all-gather.
void gather_weights(Stage& stage, int shift);
/// All-gathers a bucket's weights from the parts that the ranks along `axes` have. `index`: the
/// instance of the whole weights. Returns the op.
Id gather_from(Stage& stage, program::Axes axes, program::Ref part, const Bucket& bucket, int index,
               int shift);

}  // namespace rehearse::methods
