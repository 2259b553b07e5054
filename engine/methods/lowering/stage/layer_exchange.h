// How the sparse sync sums a bucket under a plan, and which ranks meet in two-level exchanges,
// where the lowest rank of a data-parallel group on a node, its leader, exchanges for the others
// there.
#pragma once
#include <vector>

#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

/// How a bucket is summed, and the select kernel that makes its packets.
struct BucketExchange {
  plan::Reduction reduction = plan::Reduction::dense;
  program::Kernel kernel = {};
};
/// By the bucket's layer: the first segment of the model that uses the bucket's first group.
BucketExchange exchange_of(const Stage& stage, const Bucket& bucket);

/// Whether any layer is reduced in this way.
bool uses(const plan::Plan& plan, plan::Reduction reduction);
/// Whether any layer is sparse or two_level.
bool chooses(const plan::Plan& plan);

/// [rank]: its leader. Empty without data parallelism. Throws Refused when the plan does not name
/// the node of every rank.
std::vector<Id> node_leaders(const plan::Plan& plan, const program::Program& program);

/// Axis bits that name the ranks of a node and the leaders of a group in layouts: the second and
/// the third after the mesh's axes (the first is tied_axis).
program::Axes node_axis(const Stage& stage);
program::Axes leader_axis(const Stage& stage);
/// The channel of this name between the ranks of a data-parallel group on one node.
Id node_channel(Stage& stage, const std::string& name);
/// The channel between the leaders of a data-parallel group.
Id leader_channel(Stage& stage);

/// Throws Refused when ranks with copies of the same weights (tensor ranks, or stages with tied
/// weights) are spread over nodes in different patterns. Their gradients would then be summed in
/// different orders, the ranks could select different entries, and the copies would drift apart.
void check_copies(const Stage& stage, const Bucket& bucket);

}  // namespace rehearse::methods
