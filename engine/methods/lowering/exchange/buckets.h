// Buckets: which parameter groups of a stage are reduced together, and the views that a rank has of
// each bucket. Groups that tp splits come first. The other groups are whole on every tensor rank;
// their gradients are partial over tp and so lie in one interval:
//
//   | groups split by tp | groups whole on every tp rank | padding |
//   0               whole_begin                     begin.back() elements
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

class GradientSync;

/// A bucket's views on a rank, as GradientSync::declare fills them. none: no such view.
struct BucketViews {
  Id weight = none;      // all weights, as passes read them
  Id own_weight = none;  // the weights that this rank updates: all, or its shard
  Id grad = none;        // the gradient that backward writes
  Id whole_grad = none;  // its part from whole_begin on
  Id sum = none;         // the summed gradient of own_weight, which the update reads
  Id moment1 = none, moment2 = none, master = none;  // optimizer state of own_weight
  Id host_grad = none, host_weight = none;           // copies of `sum` and own_weight on the host
  // With a reshard group: this rank's part of a gathered weight, and what it keeps of that.
  Id gathered_part = none, kept_part = none;
  // Sparse exchanges: the entries not sent yet, the threshold of a threshold select, the packet of
  // this rank, and all packets that it adds up.
  Id residual = none, threshold = none, packet = none, packets = none;
  // Quantised exchanges: also what the codes of the sum miss, and the packets before and after the
  // all-to-all. `packet` is that of the sum of this rank's part, `packets` those of all sums.
  Id sum_residual = none, parts = none, received = none;
  // Low-rank exchanges: the factors of all matrices, and the other gradients in one buffer.
  Id left = none, right = none, rest = none;
  // Weights of each rank's own: what the ranks last agreed on, its momentum and gradient; and the
  // weights of neighbours.
  Id anchor = none, outer_moment = none, outer_grad = none, neighbours = none;
};

/// Parameter groups that share flat storage and are reduced together.
struct Bucket {
  std::string name = {};
  std::vector<Id> groups = {};
  std::vector<std::int64_t> begin = {};  // [group in `groups`]: first element; last entry: the end
  std::int64_t whole_begin = 0;          // first element of the groups that tp does not split
  std::int64_t elements = 0;             // with padding that makes parts equal (equal_parts)
  Id completes_at = none;                // the segment whose backward completes its gradients
  bool tied = false;                     // has a copy on another stage; their gradients are summed
  bool tied_copy = false;                // tied, and not on the first stage that has it
  BucketViews views = {};
};

/// Adds a storage with an element for each of the bucket's: PREFIX and the bucket's name.
Id storage_of(program::RoleBuilder& role, const Bucket& bucket, const char* prefix,
              program::Life life);

/// The axis bit that names copies of tied weights in layouts: the first one after the mesh's axes.
program::Axes tied_axis(const program::Program& program);

/// The buckets of a stage in the order in which backward completes them. A group is complete after
/// the backward of the first segment that uses it. Adds the channel of tied weights if there are
/// any.
std::vector<Bucket> make_buckets(program::Program& program, const plan::Plan& plan,
                                 const model::ModelSpec& model, int stage,
                                 const GradientSync& sync);

}  // namespace rehearse::methods
