// Runs one rank of a linked program on LibTorch tensors. The constructor resolves everything in the
// rank's role: operands, blocks, communicators, waits. After that the executor runs the program's
// ops one by one; it contains no code for any particular method of parallel training.
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
#include "engine/execution/trace/trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/tensors/tensor_map.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/device/device.h"
#include "runtime/executor/lanes/lane_runner.h"

namespace rehearse::runtime {

/// Loss and gradient norm of a step, as this rank knows them.
struct StepLoss {
  double sum = 0;           // sum of -log p over this rank's counted tokens
  double square_norm = -1;  // square of the global gradient's norm; < 0: not measured
  // Of a step that the rank did not train, because it had given up its round: the labels that it
  // left out. At the end of a round: whether the rank was late (program::Round).
  std::int64_t missed_labels = 0;
  bool late = false;
};

/// Maps the ranks of a program to the processes of the run. When a run changes its plan, a rank of
/// the new program may be played by another process, and its channels need names of their own.
struct Wiring {
  std::string prefix = {};          // put in front of channel names
  std::vector<Id> process_of = {};  // by rank; empty: rank i is process i
  Id process(Id rank) const { return process_of.empty() ? rank : process_of[rank]; }
  std::vector<Id> processes(std::vector<Id> ranks) const {
    for (Id& rank : ranks) rank = process(rank);
    return ranks;
  }
};

class FaultInjector;

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
  const cluster::Disturber* disturber = nullptr;  // slows down local ops; null: no disturbance
  Wiring wiring = {};
  FaultInjector* faults = nullptr;  // null: none
  Device* device = nullptr;         // where its tensors are and its ops run; null: the CPU
};

class Executor {
 public:
  /// `given`: by storage of this rank's role, existing memory to use for it, another executor's
  /// `address`. A null entry or a missing one: the executor allocates the storage.
  explicit Executor(const ExecutorContext& context, const std::vector<std::byte*>& given = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Fills weights (and masters) from train.seed, loss scales with their initial value, and all
  /// other state and buffers with 0. Calls `alive`, if there is one, with each layer.
  void initialise(const std::function<void()>& alive = {});
  /// Like `initialise`, but weights become 0.
  void clear();

  /// Runs steps [first, last), or fewer when the control plane ends the run. Returns the step after
  /// the last one that ran. A free-running role counts its own steps: it ignores `first` and
  /// continues after its own last step, whatever the other roles do. `on_step` is called on the
  /// calling thread, after the last op of each step on the compute lane has ended; an asynchronous
  /// device may have begun the next step by then.
  std::int64_t run(std::int64_t first, std::int64_t last,
                   const std::function<void(std::int64_t step, const StepLoss&)>& on_step);

  /// Sum of -log p over this rank's labels of the first `batches` validation batches of `data`,
  /// with the weights that step `step` would use; 0 where not `counts()`. Every rank calls it,
  /// between two `run`s.
  double evaluate(std::int64_t step, std::int64_t batches, const Data& data);

  /// Whether this rank's losses count: all tensor-parallel ranks compute the same loss, so only
  /// tensor rank 0 counts.
  bool counts() const;

  /// By rank: which parameters lie where in the rank's storages.
  const std::vector<tensors::RankMap>& maps() const;
  const program::Role& role() const;
  /// The bytes of a state storage that an op of step `step` reads with age `age` (>= 1). Between
  /// two `run`s.
  HostBytes state(Id storage, std::int64_t step, int age) const;
  /// Lets `change` write these bytes.
  void edit_state(Id storage, std::int64_t step, int age,
                  const std::function<void(std::span<std::byte>)>& change);
  /// Where the device has them, for an executor that works on the same memory.
  std::byte* address(Id storage, std::int64_t step, int age) const;

  /// The bytes of an instance of a storage in host memory to which the program copies state.
  std::span<const std::byte> snapshot(Id storage, int index) const;
  /// What a Save op does with the snapshot of the state before step `step`; `skipped`: as
  /// skipped_updates() then. Called on another thread while training goes on, on every rank for the
  /// same steps. Empty: nothing.
  void on_save(std::function<void(std::int64_t step, std::int64_t skipped)> save);

  /// How many steps so far skipped their update because the gradient was not finite; the same on
  /// every rank. State of the run that lies in no storage.
  std::int64_t skipped_updates() const;
  void skipped_updates(std::int64_t count);

  /// The step with which a free-running role continues. Nothing before its first run and for other
  /// roles.
  std::optional<std::int64_t> own_step() const;
  void own_step(std::int64_t step);

  /// Records begin and end of the next `ops_per_lane` ops of each lane; 0: of none.
  void keep_stamps(std::size_t ops_per_lane);
  const std::vector<std::vector<OpTimes>>& stamps() const;

  /// Seconds that this rank's compute ops (forward, backward, recompute) have taken so far. Grows
  /// with the number of samples that the rank has, which load balancing uses.
  double compute_seconds() const;
  const Wiring& wiring() const;

  /// Of an accelerator: what the host computes in its place ("select", "update"); sorted.
  std::vector<std::string> host_work() const;
  std::int64_t bytes_sent() const;
  std::int64_t scratch_bytes() const;  // working memory of communicators

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
