// What each kind of work does on this machine. An op is prepared once - operands resolved, blocks
// and communicators made, collectives readied - and then executed every step without look-ups. The
// visit over Work is exhaustive: a new kind of work does not compile until it can be run.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/tensors/tensor_map.h"
#include "runtime/communication/communicator.h"
#include "runtime/communication/network.h"
#include "runtime/data/data.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/rank_memory.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

/// Where the batches of a run come from, and what is done with them.
struct BatchSource {
  const Data* data = nullptr;
  bool training = true;
  std::int64_t evaluation = 0;  // while not training: number of the evaluation batch
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

  /// Runs the instance of an op that serves a step. Called from the op's lane. False when it takes
  /// from a mailbox to which nobody will put any more.
  bool execute(Id op, std::int64_t step);

  /// Before a run: what its batches are, and which ops it will run (all of them, or a slice). The
  /// head's backward is where a micro-batch's loss is read; while not training that is all it does.
  void begin(BatchSource feed, const std::vector<bool>* slice = nullptr);
  /// After a run: this rank puts no more, so that those who take from it can end too.
  void end();
  /// Loss and norm of a step that this rank has run; forgets them.
  StepLoss take_loss(std::int64_t step);

  /// Steps whose update was skipped because the gradient was not finite: bias corrections count
  /// updates. Goes into checkpoints.
  std::int64_t skipped_updates() const { return skipped_updates_; }
  void skipped_updates(std::int64_t count) { skipped_updates_ = count, last_skipped_ = -1; }

  /// Payload bytes sent so far over all communicators and mailboxes.
  std::int64_t bytes_sent() const;
  /// Bytes of communicators' scratch memory.
  std::int64_t scratch_bytes() const;

 private:
  struct Prepared;
  struct MicroBatch {
    std::int64_t key = -1;
    models::Batch batch = {};
    std::int64_t first = 0;  // sample of the global batch
    int samples = 0;
  };

  void prepare(Id op);
  void prepare_compute(Prepared& p, const program::Compute& compute);
  void prepare_kernel(Prepared& p, const program::Kernel& kernel);
  void prepare_update(Prepared& p);
  void prepare_collective(Prepared& p, const program::Collective& collective);
  void prepare_exchange(Prepared& p, Id channel, Id peer);
  void find_samples();
  Communicator& communicator(Id lane, Id channel);
  void open_mailboxes();

  const models::Batch& batch(int microbatch, std::int64_t step);
  void compute(Prepared& p, const program::Compute& compute, std::int64_t step);
  void forward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void backward(Prepared& p, const program::Compute& compute, std::int64_t step);
  void kernel(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void select(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  void scatter_add(Prepared& p, const program::Kernel& kernel, std::int64_t step);
  const program::Kernel* packets_of(Id storage) const;
  void update(Prepared& p, std::int64_t step);
  void collective(Prepared& p, std::int64_t step);
  Buffer payload(const Operand& operand, std::int64_t step);
  Buffer place(const Operand& operand, std::int64_t step);
  StepLoss& loss(std::int64_t step);

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
  const Wiring& wiring_;
  BatchSource feed_ = {};
  std::vector<std::unique_ptr<Prepared>> ops_;
  std::vector<std::unique_ptr<models::Block>> blocks_;                     // by segment
  std::vector<std::vector<std::unique_ptr<Communicator>>> communicators_;  // by lane, channel
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;                        // by channel
  std::int64_t bytes_put_ = 0;                                             // in earlier runs
  int run_ = 0;                  // mailboxes are made anew for each
  std::vector<Id> last_sender_;  // by channel
  std::vector<MicroBatch> microbatches_;
  std::vector<std::pair<std::int64_t, StepLoss>> losses_;  // by step modulo their number
  std::mutex loss_lock_;
  SelectScratch select_scratch_;  // selects share a lane
  std::int64_t skipped_updates_ = 0, last_skipped_ = -1;
};

}  // namespace rehearse::runtime
