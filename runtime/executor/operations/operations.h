// Executes the ops of one rank. Each op is prepared once (operands resolved, blocks and
// communicators made, collectives prepared) and then executed in every step without look-ups. The
// visit over program::Work is exhaustive, so a new kind of work does not compile before it can be
// executed.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/program/rounds.h"
#include "engine/tensors/tensor_map.h"
#include "runtime/communication/communicator.h"
#include "runtime/communication/network.h"
#include "runtime/data/data.h"
#include "runtime/device/accelerator.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/kernels/host_kernels.h"

namespace rehearse::runtime {

/// Which data a run reads, and whether it trains or evaluates.
struct BatchSource {
  const Data* data = nullptr;
  bool training = true;
  std::int64_t evaluation = 0;  // number of the validation batch, if not training
  /// Of a training run: whether a step, which has begun, is the last one.
  std::function<bool(std::int64_t step)> ends_after = {};
};

class Operations {
 public:
  Operations(const link::LinkedProgram& linked, const model::ModelSpec& model,
             const job::Train& train, plan::Optimizer optimizer, int global_batch, Id rank,
             const tensors::RankMap& map, Network& network, RankMemory& memory,
             const Wiring& wiring);
  ~Operations();
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // The three parts of an op in a step (LaneRunner::Hooks).

  /// Reads the batch that the op needs.
  void stage(Id op, std::int64_t step);
  /// Sleeps, or writes a checkpoint.
  void host(Id op, std::int64_t step);
  /// False: the op took the answer after which this free-running rank begins no further step of
  /// this run.
  bool execute(Id op, std::int64_t step);

  /// Call before a run. In evaluation the head's backward only adds up the loss.
  void begin_run(const BatchSource& feed);
  /// Call after a run. Closes this rank's mailboxes.
  void end_run();
  /// Returns loss and norm of a step that this rank has run, and forgets them.
  StepLoss take_loss(std::int64_t step);

  /// How many steps skipped their update because the gradient was not finite. Adam's bias
  /// correction counts updates, not steps, so checkpoints keep this number.
  /// While nothing runs on the device.
  std::int64_t skipped_updates() const;
  void skipped_updates(std::int64_t count);

  /// What a Save does with the snapshot before step `step`; `skipped`: skipped_updates() then.
  /// Called on the thread of the Save's lane. Empty: nothing.
  using OnSave = std::function<void(std::int64_t step, std::int64_t skipped)>;
  void on_save(OnSave save) { on_save_ = std::move(save); }

  /// Of an accelerator: what the host computes in its place, by name; sorted.
  std::vector<std::string> host_work() const;

  /// Payload bytes sent so far, over all communicators and mailboxes.
  std::int64_t bytes_sent() const;
  /// Working memory of all communicators, in bytes.
  std::int64_t scratch_bytes() const;

 private:
  struct Prepared;
  struct SecureSide;
  /// The samples of a micro-batch in one step, in host memory.
  struct Staged {
    std::int64_t key = -1;  // what `batch` holds: see `stage`; -1: nothing
    models::Batch batch = {};
  };
  struct MicroBatch {
    std::vector<Staged> staged = {};  // step s is in s mod their number
    std::int64_t first = 0;           // its first sample's number within the global batch
    int samples = 0;
    // Where ranks divide samples: room to read whole ones, all tokens before all labels.
    std::vector<std::int64_t> whole = {};
    Staged& at(std::int64_t step) { return staged[static_cast<std::size_t>(step) % staged.size()]; }
  };

  void prepare(Id op);
  void prepare_compute(Prepared& p, const program::Compute& compute);
  void prepare_part(Prepared& p, const program::Compute& compute);
  void prepare_kernel(Prepared& p, const program::Kernel& kernel);
  void prepare_packets(Prepared& p, const program::Kernel& kernel);
  void prepare_update(Prepared& p);
  void prepare_numbers();
  void prepare_collective(Prepared& p, const program::Collective& collective);
  void prepare_exchange(Prepared& p, Id channel, Id peer);
  void find_samples();
  Communicator& communicator(Id lane, Id channel);
  /// The same on an accelerator: a wire that connects these processes alone.
  Communicator& wire(const std::string& name, const std::vector<Id>& ranks);
  bool computes_on_host(const Prepared& p) const;
  /// Those that do the work of a prepared op.
  Kernels& kernels(const Prepared& p);
  void open_mailboxes();
  /// Memory for numbers that bodies leave for the host.
  std::shared_ptr<std::byte> host_memory(std::size_t bytes) const;
  /// For i64 numbers that the host writes and bodies read.
  at::Tensor host_tensor(at::IntArrayRef sizes) const;
  template <class F>
  void each_communicator(const F& f) const;

  /// The samples of an op. On an accelerator they are uploaded to `room`, if the op reads them.
  const models::Batch& batch(const program::Compute& work, std::int64_t step, models::Batch& room);
  /// The number of labels whose mean loss gives the gradient: those of the global batch, or of this
  /// rank's samples where gradients are each rank's own.
  std::int64_t label_count(std::int64_t step) const;
  void compute(Prepared& p, const program::Compute& compute, std::int64_t step);
  void forward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void backward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void part_forward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void part_backward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void fill_batch(MicroBatch& m, models::Batch& batch, std::int64_t step);
  void kernel(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void select(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void scatter_add(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void quantise(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void dequantise(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void low_rank(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void draw(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void momentum(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  /// The kernels that average weights.
  void average(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void prepare_secure();
  void secure_sum(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  NormAndScale norm_and_scale(const Prepared& p, std::int64_t step);
  const program::Kernel* packets_of(Id storage) const;
  void update(Prepared& p, const program::Update& update, std::int64_t step);
  void collective(Prepared& p, std::int64_t step);
  /// Does the work of an op in a step in which it has some, where it computes. Returns what
  /// `execute` does.
  bool work(Prepared& p, std::int64_t step);
  bool run(Prepared& p, std::int64_t step);
  /// Whether the op does anything in this step.
  bool works(const Prepared& p, std::int64_t step);
  double now();
  void copy(Prepared& p, std::int64_t step);
  Buffer payload(const Operand& operand, std::int64_t step);
  Buffer place(const Operand& operand, std::int64_t step);
  /// Where the bodies of a step leave its loss and norm. On an accelerator its kernels write to
  /// `there`, from where each number is copied to `here`.
  struct LossPlace {
    StepLoss *here = nullptr, *there = nullptr;
  };
  LossPlace loss(std::int64_t step);
  void add_loss(std::int64_t step, const at::Tensor& sum);

  const link::LinkedProgram& linked_;
  const program::Program& program_;
  const model::ModelSpec& model_;
  const job::Train& train_;
  plan::Optimizer optimizer_;
  int global_batch_;
  Id rank_, role_id_;
  const program::Role& role_;
  const tensors::RankMap& map_;
  Network& network_;
  RankMemory& memory_;
  Accelerator* accelerator_;  // null: bodies run on the host
  const Wiring& wiring_;
  tensors::GroupPlace context_;  // this rank's place among those that divide each sequence
  software::Norms norms_;        // how the outputs of norms get to backward
  BatchSource feed_ = {};
  std::vector<std::unique_ptr<Prepared>> ops_;
  std::vector<std::unique_ptr<models::Block>> blocks_;                     // by segment
  std::vector<std::unique_ptr<models::PartedAttention>> parted_;           // by segment
  std::vector<std::vector<std::unique_ptr<Communicator>>> communicators_;  // by lane, channel
  std::map<std::string, std::unique_ptr<Communicator>> wires_;             // by name
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;                        // by channel
  std::int64_t bytes_put_ = 0;                                             // in earlier runs
  int run_ = 0;                  // number of the run; every run gets new mailboxes
  std::vector<Id> last_sender_;  // by channel: sender of the last message taken
  bool ends_others_;             // its answers tell free-running ranks when to end
  std::vector<MicroBatch> microbatches_;
  std::vector<std::int64_t> positions_;   // models::Batch::positions of all micro-batches
  bool own_gradients_ = false;            // passes leave gradients that are each rank's own
  std::vector<std::int64_t> loss_steps_;  // whose losses are kept, at step modulo size
  std::shared_ptr<std::byte> losses_, losses_there_;  // a StepLoss for each, see LossPlace
  std::mutex loss_lock_;
  program::RoundClock rounds_ = {};
  std::shared_ptr<SecureSide> secure_ = {};  // null: no secure sum yet
  HostKernels host_kernels_ = {};            // one is enough: all selects of a role are on one lane
  std::shared_ptr<std::byte> numbers_;  // the device's memory of `skips_` and Prepared::scalars
  SkipCount* skips_ = nullptr;
  std::int64_t copied_step_ = -1;              // the last snapshot's step
  std::shared_ptr<std::byte> copied_skipped_;  // its SkipCount
  OnSave on_save_ = {};
};

}  // namespace rehearse::runtime
