// What becomes of a bucket's gradient under a plan, and who meets whom when nodes exchange through
// one of their ranks, however many ranks a node has.
#pragma once
#include <vector>

#include "engine/methods/lowering/stage.h"

namespace rehearse::methods {

/// How a bucket is summed, and the select that makes its packets.
struct BucketExchange {
  plan::Reduction reduction = plan::Reduction::dense;
  program::Kernel kernel = {};
};
/// Tied weights belong to the first segment that uses them.
BucketExchange exchange_of(const Stage& stage, const Bucket& bucket);

/// Whether any layer is reduced so; whether any is not dense.
bool uses(const plan::Plan& plan, plan::Reduction reduction);
bool chooses(const plan::Plan& plan);

/// By rank, the lowest rank of its data-parallel group on its node; empty without data parallelism.
/// Throws Refused when the plan does not say where ranks stand.
std::vector<Id> node_leaders(const plan::Plan& plan, const program::Program& program);

/// Axes of their own, by which layouts name the ranks of a node and the leaders of a group. (The
/// first such axis is that of tied copies.)
program::Axes node_axis(const Stage& stage);
program::Axes leader_axis(const Stage& stage);
/// The channel of that name between the ranks of a group that share a node.
Id node_channel(Stage& stage, const std::string& name);
Id leader_channel(Stage& stage);

/// Copies of weights, on tensor ranks or of tied ones on stages, must be summed in the same order,
/// or they choose differently and drift apart: throws Refused when those that have them lie
/// differently on nodes.
void check_copies(const Stage& stage, const Bucket& bucket);

}  // namespace rehearse::methods
