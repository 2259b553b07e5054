// ZeRO (Rajbhandari et al., SC 2020) over n data-parallel ranks, with M micro-batches:
//
//   on each rank      level 1   level 2   level 3
//   optimizer state   1/n       1/n       1/n
//   gradients         all       1/n       1/n
//   weights           all       all       1/n
//   bytes sent        2         M + 1     3 M      in units of (n-1)/n x all parameters' bytes
//
// - Level 1: one reduce-scatter of the step's gradients, an update of the shard, an all-gather of
//   the new weights.
// - Level 2: the same, but each micro-batch's gradient is reduce-scattered and added to the shard;
//   the whole gradient is freed then. Backward runs at most pending_buckets buckets ahead of
//   reduce-scatters (default: two, as PyTorch's FSDP2), so a rank holds whole gradients of about
//   so many, however many micro-batches there are.
// - Level 3: a segment's weights are gathered for each pass, prefetch segments ahead (default:
//   one), and freed after it. With keep_gathered they are gathered once per step, which sends
//   M + 1.
// - Levels 2 and 3 with reduce_once: gradients as in level 1. Level 3 with both keys sends 2, as
//   FSDP does under torch.distributed.pipelining (stage.py, backward_maybe_with_nosync).
//
// A stage of a pipeline does all of this with its own weights.
//
// With groups of s of the n ranks:
//
// - shard_group (hybrid sharding: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.2): everything
//   above holds with s in place of n, in each of n / s groups. Then ranks with equal shards
//   all-reduce the shard's gradient of the whole step: 2 (n-s)/n of 1/s of all parameters' bytes.
// - reshard_group (FSDP2's reshard_after_forward as a number; ZeRO++'s secondary partition, Wang et
//   al. 2023, section 3.2): a forward gathers from all n ranks, keeps the group's part, and
//   backward gathers from the group: M ((n-1)/n + (s-1)/s + (n-1)/n) for level 3.
#include <algorithm>

#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {
namespace {

class Sharded final : public GradientSync {
 public:
  Sharded(int level, bool each) : level_(level), each_(each) {}

  bool bucket_per_segment(const plan::Plan&) const override { return level_ == 3; }
  /// A shard is made of the gradient of one micro-batch, so chunks of a stage share no bucket.
  bool closes_after(const plan::Plan& plan, Id segment) const override {
    return each_ && std::ranges::any_of(plan.placement.stages, [&](const std::vector<Id>& chunk) {
             return chunk.front() == segment;
           });
  }
  int grad_index(int microbatch) const override { return each_ ? microbatch : 0; }

  void declare(Stage& stage, Bucket& b) const override {
    program::RoleBuilder& role = stage.role();
    const plan::Plan& plan = stage.plan();
    const program::DType dtype = plan.precision;
    const std::int64_t shard = b.elements / plan.shards();
    BucketViews& views = b.views;
    const Id weight = role.storage({.name = "W." + b.name,
                                    .life = program::Life::state,
                                    .dtype = dtype,
                                    .elements = level_ == 3 ? shard : b.elements});
    if (level_ == 3) {
      views.own_weight = weight;
      views.weight = role.storage(
          {.name = "Wg." + b.name,
           .dtype = dtype,
           .elements = b.elements,
           .indices = plan.exchange.sharding.keep_gathered ? 1 : 2 * plan.schedule.micro_batches});
    } else {
      views.weight = weight;
      views.own_weight = stage.own_part(weight, b);
    }
    if (const program::Axes group = reshard_axis(stage); level_ == 3 && group != 0) {
      views.gathered_part = role.view({.name = "Wg." + b.name + ".part",
                                       .storage = role.role().views[views.weight].storage,
                                       .end = b.elements,
                                       .slice = group});
      views.kept_part = role.storage({.name = "Wr." + b.name,
                                      .dtype = dtype,
                                      .elements = b.elements / plan.exchange.sharding.reshard_group,
                                      .indices = plan.schedule.micro_batches});
    }
    stage.declare_weights_of_groups(b);
    const program::Life kept =
        plan.keeps_gradients() ? program::Life::buffer : program::Life::value;
    views.grad = role.storage({.name = "G." + b.name,
                               .life = each_ ? program::Life::value : kept,
                               .dtype = plan.gradient_type(),
                               .elements = b.elements,
                               .indices = each_ ? plan.schedule.micro_batches : 1});
    stage.declare_grads_of_groups(b);
    views.sum = each_ ? role.storage({.name = "Gs." + b.name,
                                      .life = kept,
                                      .dtype = plan.gradient_type(),
                                      .elements = shard})
                      : stage.own_part(views.grad, b);
    stage.optimizer().declare(b, shard);
  }

  void before_use(Stage& stage, const Bucket& b, program::Pass pass, int microbatch,
                  int shift) const override {
    if (level_ < 3 || !stage.dp()) return;
    const int index = gathered_index(stage.plan(), pass, microbatch);
    if (!stage.once(b.name + "#" + std::to_string(index))) return;
    const program::Axes group = reshard_axis(stage);
    const bool from_group = group != 0 && pass != program::Pass::forward;
    const auto part = [](Id view, int of, int age) {
      return ref(view, program::Slot::source, program::Mode::read, of, age);
    };
    const Id op =
        from_group
            ? gather_from(stage, group, part(b.views.kept_part, microbatch, 0), b, index, shift)
            : gather_from(stage, stage.shards(), part(b.views.own_weight, 0, 1), b, index, shift);
    if (stage.prefetch_gate() != none) stage.role().throttle(op, stage.prefetch_gate());
    if (group != 0 && !from_group)
      stage.role().op("compute", program::Kernel{.kind = program::KernelKind::cast},
                      {ref(b.views.gathered_part, program::Slot::source, program::Mode::read, index,
                           0, {.shard = group}),
                       ref(b.views.kept_part, program::Slot::target, program::Mode::write,
                           microbatch, 0, {.shard = group})},
                      shift);
  }

  program::Ref param(const Stage& stage, Id group, program::Pass pass,
                     int microbatch) const override {
    const Id view = stage.weight(group);
    if (level_ < 3) return ref(view, program::Slot::param, program::Mode::read, 0, 1);
    return ref(view, program::Slot::param, program::Mode::read,
               gathered_index(stage.plan(), pass, microbatch));
  }

  void reduce(Stage& stage, Bucket& b, int microbatch, bool last, int shift) const override {
    if (!each_ && !last) return;
    const int index = grad_index(microbatch);
    // Stages meet for a tied gradient once a step. If they met for each micro-batch, the last stage
    // would wait for the first one's backward.
    const program::Axes still = each_ && b.tied ? tied_axis(stage.program()) : program::Axes{0};
    if (still == 0)
      reduce_model_axes(stage, b, index, shift);
    else
      reduce_over_tensor_ranks(stage, b, index, shift);
    const auto own = [&](program::Axes partial) {
      return program::Layout{.shard = stage.shards(), .partial = partial};
    };
    const Id op = stage.role().op(
        "dp", stage.collective(stage.axis_channel(stage.shards()), program::Move::reduce_scatter),
        {ref(b.views.grad, program::Slot::source, program::Mode::read, index, 0,
             {.partial = stage.dp() | still}),
         ref(b.views.sum, program::Slot::target,
             each_ && microbatch > 0 ? program::Mode::add : program::Mode::write, 0, 0,
             own(stage.copies() | still))},
        shift);
    if (each_) stage.reduced(op);
    if (!last) return;
    if (stage.copies() != 0)  // on a lane of its own, beside the next bucket's reduce-scatter
      stage.role().op(
          "replicate",
          stage.collective(stage.axis_channel(stage.copies()), program::Move::all_reduce),
          {ref(b.views.sum, program::Slot::source, program::Mode::read, 0, 0,
               own(stage.copies() | still)),
           ref(b.views.sum, program::Slot::target, program::Mode::write, 0, 0, own(still))},
          shift);
    if (still != 0) reduce_over_copies(stage, b.views.sum, 0, own(0), shift);
    stage.to_host(b, own(0), shift);
  }

  void finish(Stage& stage, int shift) const override {
    update_all(stage, {.shard = stage.shards()}, shift);
    if (level_ < 3) gather_weights(stage, shift);
  }

 private:
  static int gathered_index(const plan::Plan& plan, program::Pass pass, int microbatch) {
    return plan.exchange.sharding.keep_gathered
               ? 0
               : 2 * microbatch + (pass == program::Pass::forward ? 0 : 1);
  }
  /// The axis of the groups that keep weights after forward; 0: there are none.
  static program::Axes reshard_axis(const Stage& stage) {
    return stage.plan().exchange.sharding.reshard_group > 0 ? axis_named(stage.program(), "shard")
                                                            : 0;
  }
  int level_;
  bool each_;  // each micro-batch's gradient becomes a shard
};

}  // namespace

const GradientSync& sharded(const plan::Plan& plan) {
  static const Sharded each[]{{1, false}, {2, true}, {3, true}};
  static const Sharded once[]{{1, false}, {2, false}, {3, false}};
  return (plan.shards_gradients() ? each : once)[plan.exchange.sharding.zero - 1];
}

const GradientSync& gradient_sync(const plan::Plan& plan) {
  return plan.exchange.sharding.zero > 0 && plan.shards() > 1 ? sharded(plan) : replicated();
}

}  // namespace rehearse::methods
