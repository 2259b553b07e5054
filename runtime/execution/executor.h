// Runs one rank of a linked program on LibTorch tensors. The role is resolved once, when the
// executor is made: operands, blocks, communicators, waits. What it runs afterwards is what the
// program says, op by op; it knows no method.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/disturbance.h"
#include "engine/execution/trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/tensors/tensor_map.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/execution/lane_runner.h"

namespace rehearse::runtime {

/// What a step showed on this rank.
struct StepLoss {
  double sum = 0;           // of -log p over this rank's counted tokens
  double square_norm = -1;  // of the global gradient; < 0: not measured
};

/// Where the ranks of a program are in the run: plans that follow each other in one run may put a
/// rank into another process, and their channels must not meet.
struct Wiring {
  std::string prefix = {};          // of the names of channels
  std::vector<Id> process_of = {};  // by rank; empty: its own number
  Id process(Id rank) const { return process_of.empty() ? rank : process_of[rank]; }
  std::vector<Id> processes(std::vector<Id> ranks) const {
    for (Id& rank : ranks) rank = process(rank);
    return ranks;
  }
};

/// All references must outlive the executor.
struct ExecutorContext {
  const link::LinkedProgram& linked;
  const model::ModelSpec& model;
  const plan::Plan& plan;
  const job::Train& train;
  Id rank;
  const Data& data;
  Network& network;
  Control& control;
  const cluster::Disturber* disturber = nullptr;  // makes local ops take longer; null: nothing does
  Wiring wiring = {};
};

class Executor {
 public:
  /// `given`: by storage of this rank's role, memory of another executor in which it lies; null or
  /// none: its own.
  explicit Executor(const ExecutorContext& context, const std::vector<std::byte*>& given = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Fills weights from train.seed; everything else with what it is before the first step.
  void initialise();
  /// The same without the weights, which are 0.
  void clear();

  /// Runs steps [first, last), or fewer when the control plane ends the run; returns the step after
  /// the last. A free-running role counts for itself: it goes on with the step after its own last,
  /// wherever the others are. `on_step` is called on the calling thread after the last op of each
  /// step on the compute lane.
  std::int64_t run(std::int64_t first, std::int64_t last,
                   const std::function<void(std::int64_t step, const StepLoss&)>& on_step);

  /// Sum of -log p over the labels that this rank counts in `batches` validation batches, with the
  /// weights that step `step` would use. Every rank calls it, between runs.
  double evaluate(std::int64_t step, std::int64_t batches);

  /// Whether this rank's losses count (one of the tensor-parallel ranks counts for all).
  bool counts() const;

  /// Maps of all ranks.
  const std::vector<tensors::RankMap>& maps() const;
  const program::Role& role() const;
  /// The bytes of a state storage that an op at `step` reads with this age (>= 1).
  std::span<std::byte> state(Id storage, std::int64_t step, int age);

  /// Steps so far whose update was skipped, the same on every rank: state beside the storages.
  std::int64_t skipped_updates() const;
  void skipped_updates(std::int64_t count);

  /// Where a free-running role goes on; nothing before its first run, and for other roles.
  std::optional<std::int64_t> own_step() const;
  void own_step(std::int64_t step);

  void keep_stamps(std::size_t ops_per_lane);
  const std::vector<std::vector<OpTimes>>& stamps() const;

  /// Seconds that forward and backward passes have taken so far: what grows with a rank's samples.
  double compute_seconds() const;
  const Wiring& wiring() const;

  std::int64_t bytes_sent() const;
  std::int64_t scratch_bytes() const;  // of communicators

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
