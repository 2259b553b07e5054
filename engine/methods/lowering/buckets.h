// Which parameter groups of a stage are reduced together, whose copies meet, and the views that a
// rank has of each bucket.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class GradientSync;

/// A bucket's views on a rank, as its GradientSync declares them; none: there is no such view.
struct BucketViews {
  Id weight = none;      // all of its weights, as passes read them
  Id own_weight = none;  // what this rank updates: all of them, or its shard
  Id grad = none;        // the gradient as backward leaves it
  Id whole_grad = none;  // ... of the groups that every tensor rank holds whole
  Id sum = none;         // what the update reads: the summed gradient of own_weight
  Id moment1 = none, moment2 = none, master = none;  // optimizer state of own_weight
  // Sparse exchanges: what was not sent, the threshold that follows the wanted number, this rank's
  // packet, and all packets that it adds up.
  Id residual = none, threshold = none, packet = none, packets = none;
};

/// Parameter groups that share flat storage and are reduced together. Split groups come first, so
/// that the gradients that are partial over tp (of groups that every tensor rank holds whole) are
/// one interval.
struct Bucket {
  std::string name = {};
  std::vector<Id> groups = {};
  std::vector<std::int64_t> begin = {};  // of each group, in elements; one more entry: the end
  std::int64_t whole_begin = 0;          // where the groups that tp does not split begin
  std::int64_t elements = 0;             // padded so that shards are equal
  Id completes_at = none;                // the segment whose backward completes its gradients
  bool tied = false;                     // summed with a copy on another stage
  bool tied_copy = false;                // ... of which this is the one that counts for norms
  BucketViews views = {};
};

/// The axis by which layouts name the copies of tied weights. It lies behind those of the mesh.
program::Axes tied_axis(const program::Program& program);

/// The buckets of a stage in the order in which backward completes them: a group completes with the
/// first segment that uses it. Adds the channel on which copies of tied weights meet.
std::vector<Bucket> make_buckets(program::Program& program, const plan::Plan& plan,
                                 const model::ModelSpec& model, int stage,
                                 const GradientSync& sync);

}  // namespace rehearse::methods
