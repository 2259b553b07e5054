// ZeRO (Rajbhandari et al., SC 2020): over dp, level 1 shards optimizer state, 2 gradients as well,
// 3 weights as well.
// - Level 1: gradients of the step are reduce-scattered once, each rank updates its shard, new
//   weights are all-gathered.
// - Level 2: the same, but the full gradient of a micro-batch lives only until it is
//   reduce-scattered into the shard.
// - Level 3: only shards persist; a segment's weights are gathered for a pass, prefetched one
//   segment ahead, and freed after it (unless keep_gathered: gathered once a step).
// Volumes in units of the parameters x (n-1)/n: 2; M + 1; 3M (M + 1 when kept).
#include <ranges>

#include "engine/lowering/replicated.h"

namespace rehearse {
namespace {

class Sharded final : public GradientSync {
 public:
  explicit Sharded(int level) : level_(level) {}

  bool bucket_per_segment(const Plan&) const override { return level_ == 3; }
  int grad_index(int microbatch) const override { return level_ >= 2 ? microbatch : 0; }

  void declare(Stage& stage, const Bucket& b) const override {
    RoleBuilder& role = stage.role();
    const Plan& plan = stage.plan();
    const DType dtype = plan.precision;
    const std::int64_t shard = b.elements / plan.dp;
    role.storage({.name = "W." + b.name,
                  .life = Life::state,
                  .dtype = dtype,
                  .elements = level_ == 3 ? shard : b.elements});
    if (level_ == 3) {
      role.storage({.name = "Wg." + b.name,
                    .dtype = dtype,
                    .elements = b.elements,
                    .indices = plan.keep_gathered ? 1 : 2 * plan.micro_batches});
      declare_group_views(stage, b, "W.", "Wg." + b.name);
    } else {
      role.view({.name = "W." + b.name + ".own",
                 .storage = role.role().views[role.view("W." + b.name)].storage,
                 .end = b.elements,
                 .slice = stage.dp()});
      declare_group_views(stage, b, "W.", "W." + b.name);
    }
    role.storage({.name = "G." + b.name,
                  .life = level_ >= 2 ? Life::value : Life::buffer,
                  .dtype = dtype,
                  .elements = b.elements,
                  .indices = level_ >= 2 ? plan.micro_batches : 1});
    declare_group_views(stage, b, "G.", "G." + b.name);
    if (level_ >= 2)
      role.storage(
          {.name = "Gs." + b.name, .life = Life::buffer, .dtype = dtype, .elements = shard});
    else
      role.view({.name = "G." + b.name + ".own",
                 .storage = role.role().views[role.view("G." + b.name)].storage,
                 .end = b.elements,
                 .slice = stage.dp()});
    stage.declare_optimizer(b, shard);
  }

  void before_use(Stage& stage, const Bucket& b, Pass pass, int microbatch,
                  int shift) const override {
    if (level_ < 3 || !stage.dp()) return;
    const int index = gathered_index(stage.plan(), pass, microbatch);
    if (!stage.once(b.name + "#" + std::to_string(index))) return;
    const Id op = stage.role().op(
        "dp.gather", gather(stage),
        {stage.ref("W." + b.name, Slot::source, Mode::read, 0, 1, {.shard = stage.dp()}),
         stage.ref("Wg." + b.name, Slot::target, Mode::write, index)},
        shift);
    if (stage.prefetch_gate() != none) stage.role().throttle(op, stage.prefetch_gate());
  }

  Ref param(const Stage& stage, Id group, Pass pass, int microbatch) const override {
    const Id view = stage.weight(group);
    if (level_ < 3) return stage.ref(view, Slot::param, Mode::read, 0, 1);
    return stage.ref(view, Slot::param, Mode::read, gathered_index(stage.plan(), pass, microbatch));
  }

  void reduce(Stage& stage, const Bucket& b, int microbatch, bool last, int shift) const override {
    if (level_ == 1 && !last) return;
    const int index = grad_index(microbatch);
    stage.reduce_model_axes(b, "G." + b.name, index, shift);
    const Layout shard{.shard = stage.dp()};
    stage.role().op(
        "dp", stage.collective(stage.axis_channel(stage.dp()), Move::reduce_scatter),
        {stage.ref("G." + b.name, Slot::source, Mode::read, index, 0, {.partial = stage.dp()}),
         stage.ref(own_grad(b), Slot::target,
                   level_ >= 2 && microbatch > 0 ? Mode::add : Mode::write, 0, 0, shard)},
        shift);
  }

  void finish(Stage& stage, int shift) const override {
    const Layout shard{.shard = stage.dp()};
    std::vector<std::pair<const Bucket*, Ref>> grads;
    for (const Bucket& b : stage.buckets())
      grads.emplace_back(&b, stage.ref(own_grad(b), Slot::grad, Mode::read, 0, 0, shard));
    stage.emit_norm(grads, stage.dp(), shift);
    for (const auto& [b, grad] : grads) {
      const std::string own = level_ == 3 ? "W." + b->name : "W." + b->name + ".own";
      stage.emit_update(*b, stage.ref(own, Slot::param, Mode::add, 0, 0, shard), grad, shift);
    }
    stage.emit_rescale(shift);
    if (level_ == 3) return;
    // In the order in which the next forward asks for them, so that it starts after the first.
    for (const auto& [b, grad] : std::ranges::reverse_view(grads)) {
      const std::string name = "W." + b->name;
      stage.role().op("dp.gather", gather(stage),
                      {stage.ref(name + ".own", Slot::source, Mode::read, 0, 0, shard),
                       stage.ref(name, Slot::target, Mode::write)},
                      shift);
    }
  }

 private:
  static Collective gather(Stage& stage) {
    return stage.collective(channel(stage.program(), "dp.gather", {.axes = stage.dp()}),
                            Move::all_gather);
  }
  static int gathered_index(const Plan& plan, Pass pass, int microbatch) {
    return plan.keep_gathered ? 0 : 2 * microbatch + (pass == Pass::forward ? 0 : 1);
  }
  std::string own_grad(const Bucket& b) const {
    return level_ >= 2 ? "Gs." + b.name : "G." + b.name + ".own";
  }
  int level_;
};

}  // namespace

const GradientSync& sharded(int level) {
  static const Sharded levels[]{Sharded(1), Sharded(2), Sharded(3)};
  return levels[level - 1];
}

const GradientSync& gradient_sync(const Plan& plan) {
  return plan.zero > 0 && plan.dp > 1 ? sharded(plan.zero) : replicated();
}

}  // namespace rehearse
