// Lowers one pipeline stage: walks a list of actions (pass, chunk, micro-batch) and adds the ops of
// every segment, the tensor-parallel collectives between segments, and the transfers to
// neighbouring stages. A GradientSync adds what concerns the data-parallel axis. Nothing here
// orders ops across lanes: passes/infer_waits.cpp derives the waits from the refs.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/methods/lowering/exchange/buckets.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/lowering/lowered_program.h"
#include "engine/methods/lowering/optimizer.h"
#include "engine/methods/lowering/roles.h"
#include "engine/methods/lowering/stage/activations.h"
#include "engine/methods/lowering/stage/hosted.h"
#include "engine/methods/pass_order.h"
#include "engine/plan/plan.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

class Stage {
 public:
  Stage(program::Program& program, const plan::Plan& plan, const model::ModelSpec& model,
        const StageRole& who, const GradientSync& sync);
  Stage(const Stage&) = delete;  // its parts refer to each other
  Stage& operator=(const Stage&) = delete;
  /// Adds the ops of one iteration.
  void lower(const std::vector<Action>& actions);
  /// The lowered role, for replicas that differ from this one only in their number of samples.
  program::Role as(const StageRole& who) const { return activations_.as(who); }

  // For GradientSync.
  const plan::Plan& plan() const { return plan_; }
  const model::ModelSpec& model() const { return model_; }
  program::Program& program() { return program_; }
  const program::Program& program() const { return program_; }
  program::RoleBuilder& role() { return role_; }
  int index() const { return who_.stage; }
  const StageRole& who() const { return who_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  OptimizerOps& optimizer() { return optimizer_; }
  /// The axes over which gradients are summed: dp, and cp.
  program::Axes dp() const { return dp_; }
  /// Of dp(): the axes over which ZeRO divides state, and those over which ranks have equal shards.
  program::Axes shards() const { return shards_; }
  program::Axes copies() const { return dp_ & ~shards_; }
  /// The layout of the weights: copies over dp, or each rank's own (GradientSync::own_weights).
  program::Layout weights_layout() const { return {.own = sync_.own_weights() ? dp_ : 0}; }
  /// The layout of a gradient that is a partial sum over `also`: over dp it is one too, or each
  /// rank's own.
  program::Layout partial(program::Axes also = 0) const {
    const program::Axes own = weights_layout().own;
    return {.partial = also | (dp_ & ~own), .own = own};
  }
  program::Axes tp() const { return tp_; }
  program::Axes pp() const { return pp_; }
  /// The channel of the ranks that differ only along `axes`.
  Id axis_channel(program::Axes axes);
  /// A collective by the plan's algorithm, or, where that does not serve the move, by the fastest.
  program::Collective collective(Id channel, program::Move move) const;
  /// Declare a view of each parameter group in the bucket's `weight` and in its `grad`. The view of
  /// the last group includes the padding.
  void declare_weights_of_groups(const Bucket& bucket);
  void declare_grads_of_groups(const Bucket& bucket);
  void declare_groups(const Bucket& bucket) {
    declare_weights_of_groups(bucket), declare_grads_of_groups(bucket);
  }
  /// A view of this rank's shard of `whole`, a view of the whole bucket.
  Id own_part(Id whole, const Bucket& bucket);
  /// The views of a parameter group.
  Id weight(Id group) const { return weights_[group]; }
  Id grad(Id group) const { return grads_[group]; }
  /// Records the op after which a rank keeps its shard of a bucket's gradient only. A later
  /// backward waits for it (see `backward_computed`).
  void reduced(Id op) { reduced_.push_back(op); }
  /// Copies a bucket's summed gradient to the host, where the plan's optimizer is there.
  void to_host(const Bucket& bucket, program::Layout shard, int shift);
  /// True the first time that a key is seen in this stage.
  bool once(const std::string& key) { return seen_.insert(key).second; }
  /// The compute op that a gather of weights waits for, so that it runs at most `prefetch` segments
  /// ahead. none: no wait.
  Id prefetch_gate() const { return back(history_, 1 + plan_.exchange.sharding.prefetch); }

 private:
  void forward(const Action& action);
  void backward(const Action& action);
  void run_segment_forward(Id segment, const Action& action);
  /// The whole backward, or its first half.
  void run_segment_backward(Id segment, program::Pass pass, const Action& action);
  /// The second half: the gradients of matrices.
  void run_segment_weights(Id segment, const Action& action);
  /// The refs by which a pass writes or adds its gradients.
  void append_gradients(std::vector<program::Ref>& refs, Id segment, program::Pass pass,
                        const Action& action);
  void views_of_groups(const Bucket& bucket, Id of, const char* prefix, std::vector<Id>& views);
  const Bucket& bucket_of(Id group) const { return buckets_[bucket_of_[group]]; }
  /// The layout of a group's gradient after backward.
  program::Layout gradient_layout(Id group) const;
  /// Whether backward recomputes the segment together with the other segment of its layer.
  bool layered(Id segment) const { return layered_[segment]; }
  /// Recomputes attention and mlp of a layer. Returns the view of the mlp's whole input.
  Id recompute_layer(Id mlp, const Action& action);
  void recompute_segment(Id segment, Id input, int input_index, Id output, const Action& action);
  // Attention over a divided sequence (stage_context.cpp).
  bool divided(Id segment) const {
    return cp_ != 0 && model_.segments[segment].kind == model::SegmentKind::attention;
  }
  program::Compute part(Id segment, program::Pass pass, program::Part part,
                        const Action& action) const;
  /// Whether forward keeps anything of a segment for its backward; and all of that, which may be on
  /// the host in between.
  bool keeps(Id segment) const;
  std::vector<program::Ref> kept(Id segment, const Action& action);
  /// Copies that to the host. `first`: the first op of its forward, which waits for earlier copies.
  void move_to_host(Id segment, Id first, const Action& action);
  /// Copies that back to the device, where it is on the host.
  void fetch(Id segment, const Action& action);
  /// A ref of what forward kept, as the pass reads it: of what came back, if it was on the host.
  program::Ref as_read(program::Ref kept, Id segment, program::Pass pass, const Action& action);
  /// What a pass writes, adds to or reads of what forward keeps inside of a segment.
  program::Ref kept_ref(Id segment, program::Pass pass, program::Mode mode, const Action& action);
  program::Ref exchanged(Exchanged what, Id segment, program::Pass pass, program::Slot slot,
                         program::Mode mode, const Action& action);
  /// Forward or recomputation up to attention's output, and the refs by which others read that.
  void attend(Id segment, program::Pass pass, program::Ref input, const Action& action);
  std::vector<program::Ref> attention_output(Id segment, program::Pass pass, const Action& action);
  void attend_around_ring(Id segment, program::Pass pass, const Action& action);
  /// Backward from the gradient of the output down to those of queries, keys and values. `refs`:
  /// operands of the rest of backward; adds those gradients to them.
  void attend_backward(Id segment, std::vector<program::Ref>& refs, const Action& action);
  void attend_backward_around_ring(Id segment, const Action& action);
  void exchange_heads(Exchanged from, Exchanged to, Id segment, program::Pass pass,
                      const Action& action);
  /// In the step-th step around the ring: whose keys and values this rank has, whether it attends
  /// to any of them, and where they are.
  Id owner(int step) const;
  bool attends(int step) const;
  program::Ref ring_block(Id segment, int step, program::Pass pass, const Action& action);
  /// One op of a transfer around the ring, to the next rank or from the one before.
  void send_on(Exchanged what, program::Ref from, const Action& action);
  void receive(Exchanged what, program::Ref to, const Action& action);
  /// All-reduces the recomputed input of `segment`, or scatters it along the sequence.
  void sum_again(Id segment, const Action& action);
  /// How often a segment's input is gathered, and the gradient of that input scattered.
  int readers(Id segment) const;
  /// The same collective of tensor ranks, so many times.
  void on_tensor_ranks(program::Move move, const program::Ref& from, program::Ref to,
                       const Action& action, int times = 1);
  /// The view of a segment's whole input. With sequence parallelism, gathers the input first.
  Id readable_input(Id segment, const Action& action, bool for_backward);
  std::vector<program::Ref> params(Id segment, const Action& action);
  void transfer(bool send, Id segment, Boundary what, int chunk_from, int chunk_to,
                const Action& action);
  program::Compute compute(Id segment, program::Pass pass, const Action& action) const;
  /// Records a compute op for throttles.
  void computed(Id op);
  /// The same for an op that makes gradients. It waits until at most `pending_buckets` buckets are
  /// still to be reduced to their shards or copied to the host, with the one that the op begins.
  /// Otherwise gradients that wait for the network would fill the device, with more of them for
  /// every micro-batch.
  void backward_computed(Id op);
  /// The op that comes so many places before the end; none: there are fewer.
  static Id back(const std::vector<Id>& ops, int places) {
    const auto from_end = static_cast<std::size_t>(places);
    return ops.size() < from_end ? none : ops[ops.size() - from_end];
  }

  program::Program& program_;
  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const GradientSync& sync_;
  StageRole who_;
  program::RoleBuilder role_;
  program::Axes pp_ = 0, dp_ = 0, shards_ = 0, tp_ = 0, cp_ = 0;
  Activations activations_;
  Hosted hosted_;
  OptimizerOps optimizer_;
  std::vector<bool> recomputed_ = {};  // [segment]
  std::vector<Bucket> buckets_;
  std::vector<Id> bucket_of_ = {};             // [group]
  std::vector<Id> weights_ = {}, grads_ = {};  // views, [group]
  std::vector<Id> computes_ = {};              // [action]: the last compute op up to its end
  std::vector<Id> history_ = {};               // every forward and backward op
  std::vector<Id> reduced_ = {};               // after each of them a bucket's gradient is a shard
  std::vector<Id> offloaded_ = {};  // the copies to the host of gradients that stay nowhere else
  bool tied_offloaded_ = false;     // a tied gradient is among the copies so far
  std::vector<bool> layered_ = {};  // [segment]
  std::set<std::string> seen_ = {};
  std::vector<bool> touched_ = {};  // [group][micro-batch]: some backward has written its gradient
  std::vector<std::pair<program::Axes, Id>> axis_channels_ = {};
};

/// The whole program: mesh, channels, one role for each kind of replica on each stage; its waits
/// are still to be inferred.
LoweredProgram lower(const plan::Plan& plan, const model::ModelSpec& model, const PassOrder& order,
                     const GradientSync& sync);

}  // namespace rehearse::methods
