// Looks for numbers that are silently wrong, between two steps (run.check_every):
// - State that several ranks hold must be equal on them to the bit: weights, moments and masters of
//   data-parallel replicas. Ranks compare one checksum for each set of ranks that share state. Of
//   three and more copies, the odd one is wrong; of two, nobody can say which one.
// - Numbers of a rank must be possible: finite, and weights no larger than the optimizer can have
//   made them since the last check. This is all there is for state without copies.
// A gradient that is wrong before replicas sum it makes all of them wrong alike; nothing here sees
// that unless the numbers become impossible.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/control/control.h"
#include "runtime/training/placed.h"

namespace rehearse::runtime {

/// How much a number of the weights can grow in one step of AdamW, by the Cauchy-Schwarz inequality
/// between its moments; infinite where the betas allow no bound.
double largest_adamw_step(const job::Train& train);

class Checker {
 public:
  /// The references must outlive this object.
  Checker(const job::Job& job, Control& control) : job_(job), control_(control) {}

  /// Checks the state before step `step`, while no step runs. Every rank calls it. Throws
  /// BackendError, the same on every rank, that names step, rank and tensor.
  void check(std::int64_t step, PlacedPlan& plan);

 private:
  /// Ranks that hold equal parts, and these parts.
  using Copies = std::map<std::vector<Id>, std::vector<tensors::PartKey>>;
  struct Mine;  // parts of this rank
  struct Said;  // what a rank says about its state

  Copies copies_of(const PlacedPlan& plan) const;
  void check_numbers(std::int64_t step, const std::vector<Said>& all);
  void check_copies(std::int64_t step, const Copies& copies, const std::vector<Said>& all,
                    const Mine& mine, const Wiring& wiring);
  double possible(std::int64_t step, const PlacedPlan& plan) const;

  const job::Job& job_;
  Control& control_;
  std::int64_t step_ = -1;  // of the last check
  double largest_ = 0;      // magnitude of the largest weight at the last check, over all ranks
  double most_ = 0;         // magnitude of the largest weight possible now
};

}  // namespace rehearse::runtime
