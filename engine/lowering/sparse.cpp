// Top-k sparsification with error feedback, exchanged by all-gather (Aji & Heafield 2017; Lin et
// al., DGC, ICLR 2018): each rank adds its gradient to a residual, sends the k largest entries as
// (value, index) pairs, keeps the rest, and sums what all sent. Bytes per rank: (n - 1) k 8, so it
// wins over a dense ring only while density < 2 b / (8 n).
#include <cmath>

#include "engine/lowering/replicated.h"

namespace rehearse {
namespace {

class Sparse final : public Replicated {
 public:
  void declare(Stage& stage, const Bucket& b) const override {
    Replicated::declare(stage, b);
    if (!stage.dp()) return;
    const Plan& plan = stage.plan();
    const std::int64_t bytes = kept(plan, b) * pair_bytes;
    RoleBuilder& role = stage.role();
    role.storage({.name = "R." + b.name, .life = Life::state, .elements = b.begin.back()});
    role.storage({.name = "packet." + b.name, .dtype = DType::u8, .elements = bytes});
    role.storage({.name = "packets." + b.name, .dtype = DType::u8, .elements = bytes * plan.dp});
  }

 protected:
  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    if (!stage.dp()) return;
    RoleBuilder& role = stage.role();
    const std::int64_t keep = kept(stage.plan(), b);
    const Layout partial{.partial = stage.dp()};
    role.op("compute", Kernel{.kind = Local::select, .of = b.begin.back(), .keep = keep},
            {stage.ref("G." + b.name, Slot::source, Mode::read, 0, 0, partial),
             stage.ref("R." + b.name, Slot::residual, Mode::add, 0, 1),
             stage.ref("packet." + b.name, Slot::target, Mode::write, 0, 0, {.shard = stage.dp()})},
            shift);
    role.op("dp", Collective{.channel = stage.axis_channel(stage.dp()), .move = Move::all_gather},
            {stage.ref("packet." + b.name, Slot::source, Mode::read, 0, 0, {.shard = stage.dp()}),
             stage.ref("packets." + b.name, Slot::target, Mode::write)},
            shift);
  }

 public:
  /// The gathered packets are added up on the compute lane once backward is done, so that it never
  /// waits for the network.
  void finish(Stage& stage, int shift) const override {
    if (stage.dp())
      for (const Bucket& b : stage.buckets())
        stage.role().op(
            "compute",
            Kernel{.kind = Local::scatter_add, .of = b.begin.back(), .keep = kept(stage.plan(), b)},
            {stage.ref("packets." + b.name, Slot::source, Mode::read),
             stage.ref("G." + b.name, Slot::target, Mode::write)},
            shift);
    Replicated::finish(stage, shift);
  }

 private:
  static constexpr std::int64_t pair_bytes = 8;
  static std::int64_t kept(const Plan& plan, const Bucket& b) {
    return static_cast<std::int64_t>(std::ceil(plan.density * static_cast<double>(b.begin.back())));
  }
};

}  // namespace

const GradientSync& sparse() {
  static const Sparse sync;
  return sync;
}

}  // namespace rehearse
