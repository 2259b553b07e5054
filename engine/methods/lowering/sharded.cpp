// ZeRO (Rajbhandari et al., SC 2020): over dp, level 1 shards optimizer state, 2 gradients as well,
// 3 weights as well.
// - Level 1: gradients of the step are reduce-scattered once, each rank updates its shard, new
//   weights are all-gathered.
// - Level 2: the same, but the full gradient of a micro-batch lives only until it is
//   reduce-scattered into the shard.
// - Level 3: only shards persist; a segment's weights are gathered for a pass, prefetched one
//   segment ahead, and freed after it (unless keep_gathered: gathered once a step).
// Volumes in units of the parameters x (n-1)/n: 2; M + 1; 3M (M + 1 when kept).
#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {
namespace {

class Sharded final : public GradientSync {
 public:
  explicit Sharded(int level) : level_(level) {}

  bool bucket_per_segment(const plan::Plan&) const override { return level_ == 3; }
  int grad_index(int microbatch) const override { return level_ >= 2 ? microbatch : 0; }

  void declare(Stage& stage, Bucket& b) const override {
    program::RoleBuilder& role = stage.role();
    const plan::Plan& plan = stage.plan();
    const program::DType dtype = plan.precision;
    const std::int64_t shard = b.elements / plan.mesh.dp;
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
           .indices = plan.exchange.keep_gathered ? 1 : 2 * plan.schedule.micro_batches});
    } else {
      views.weight = weight;
      views.own_weight = stage.own_part(weight, b);
    }
    stage.declare_weights_of_groups(b);
    views.grad = role.storage({.name = "G." + b.name,
                               .life = level_ >= 2 ? program::Life::value : program::Life::buffer,
                               .dtype = dtype,
                               .elements = b.elements,
                               .indices = level_ >= 2 ? plan.schedule.micro_batches : 1});
    stage.declare_grads_of_groups(b);
    views.sum = level_ >= 2 ? role.storage({.name = "Gs." + b.name,
                                            .life = program::Life::buffer,
                                            .dtype = dtype,
                                            .elements = shard})
                            : stage.own_part(views.grad, b);
    stage.optimizer().declare(b, shard);
  }

  void before_use(Stage& stage, const Bucket& b, program::Pass pass, int microbatch,
                  int shift) const override {
    if (level_ < 3 || !stage.dp()) return;
    const int index = gathered_index(stage.plan(), pass, microbatch);
    if (!stage.once(b.name + "#" + std::to_string(index))) return;
    const Id op =
        stage.role().op("dp.gather", gather(stage),
                        {ref(b.views.own_weight, program::Slot::source, program::Mode::read, 0, 1,
                             {.shard = stage.dp()}),
                         ref(b.views.weight, program::Slot::target, program::Mode::write, index)},
                        shift);
    if (stage.prefetch_gate() != none) stage.role().throttle(op, stage.prefetch_gate());
  }

  program::Ref param(const Stage& stage, Id group, program::Pass pass,
                     int microbatch) const override {
    const Id view = stage.weight(group);
    if (level_ < 3) return ref(view, program::Slot::param, program::Mode::read, 0, 1);
    return ref(view, program::Slot::param, program::Mode::read,
               gathered_index(stage.plan(), pass, microbatch));
  }

  void reduce(Stage& stage, Bucket& b, int microbatch, bool last, int shift) const override {
    if (level_ == 1 && !last) return;
    const int index = grad_index(microbatch);
    reduce_model_axes(stage, b, index, shift);
    stage.role().op("dp",
                    stage.collective(stage.axis_channel(stage.dp()), program::Move::reduce_scatter),
                    {ref(b.views.grad, program::Slot::source, program::Mode::read, index, 0,
                         {.partial = stage.dp()}),
                     ref(b.views.sum, program::Slot::target,
                         level_ >= 2 && microbatch > 0 ? program::Mode::add : program::Mode::write,
                         0, 0, {.shard = stage.dp()})},
                    shift);
  }

  void finish(Stage& stage, int shift) const override {
    update_all(stage, {.shard = stage.dp()}, shift);
    if (level_ < 3) gather_weights(stage, shift);
  }

 private:
  static int gathered_index(const plan::Plan& plan, program::Pass pass, int microbatch) {
    return plan.exchange.keep_gathered ? 0
                                       : 2 * microbatch + (pass == program::Pass::forward ? 0 : 1);
  }
  int level_;
};

}  // namespace

const GradientSync& sharded(int level) {
  static const Sharded levels[]{Sharded(1), Sharded(2), Sharded(3)};
  return levels[level - 1];
}

const GradientSync& gradient_sync(const plan::Plan& plan) {
  return plan.exchange.zero > 0 && plan.mesh.dp > 1 ? sharded(plan.exchange.zero) : replicated();
}

}  // namespace rehearse::methods
