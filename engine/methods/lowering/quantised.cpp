// The quantised sync sums gradients as codes of a few bits, in two phases (1-bit Adam: Tang et al.,
// ICML 2021, section 4; torchft's allreduce_quantized). Each of n ranks owns a part of the sum:
//
//   rank i: quantise gradient + residual in n parts --all-to-all--> parts i of all ranks
//           sum of the n parts --quantise sum + residual of the sum--> a packet
//           a packet --all-gather--> n packets, from which each rank decodes the whole sum
//
// A rank sends 2 (n - 1) packets of 1 / n of the gradient, so its bytes do not grow with n. All
// ranks decode the same packets, so their weights stay equal. With error feedback, a rank keeps
// what its codes miss (residual, of the whole gradient) and what those of its part of the sum miss
// (sum_residual), and adds both to the values of the next step (Seide et al. 2014; Karimireddy et
// al., ICML 2019). Sums over tensor ranks come first, and groups that tp splits have buckets of
// their own, so that copies get the same codes.
//
// The first phase of a bucket begins when backward has completed it. The second phase begins after
// backward, so that the compute lane never waits for the network before. In bf16, the sum and what
// is added to it are f32.
#include "engine/methods/lowering/replicated.h"
#include "engine/methods/lowering/updates.h"
#include "engine/program/packets.h"

namespace rehearse::methods {
namespace {

class Quantised final : public Replicated {
 public:
  explicit Quantised(program::Compressor compressor) : compressor_(compressor) {}

  bool bucket_per_kind(const plan::Plan&) const override { return true; }
  bool equal_parts(const plan::Plan&) const override { return true; }

  void declare(Stage& stage, Bucket& b) const override {
    Replicated::declare(stage, b);
    if (!stage.dp()) return;
    program::RoleBuilder& role = stage.role();
    BucketViews& views = b.views;
    if (stage.plan().gradient_type() != program::DType::f32)
      views.sum = role.storage(
          {.name = "S." + b.name, .life = program::Life::buffer, .elements = b.elements});
    const std::int64_t part = b.elements / stage.plan().mesh.dp;
    if (*stage.plan().exchange.error_feedback) {
      views.residual = role.storage(
          {.name = "R." + b.name, .life = program::Life::state, .elements = b.elements});
      views.sum_residual =
          role.storage({.name = "E." + b.name, .life = program::Life::state, .elements = part});
    }
    const auto packets = [&](const char* prefix, std::int64_t count) {
      return role.storage(
          {.name = prefix + b.name,
           .dtype = program::DType::u8,
           .elements = count * quantised_bytes(kernel(stage, b, program::KernelKind::quantise))});
    };
    views.parts = packets("parts.", stage.plan().mesh.dp);
    views.received = packets("received.", stage.plan().mesh.dp);
    views.packet = packets("packet.", 1);
    views.packets = packets("packets.", stage.plan().mesh.dp);
  }

  void finish(Stage& stage, int shift) const override {
    if (stage.dp())
      for (const Bucket& b : stage.buckets()) sum(stage, b, shift);
    // Without a global norm, a bucket is decoded just before its update.
    const bool at_once = !stage.optimizer().needs_norm();
    if (!at_once) {
      for (const Bucket& b : stage.buckets()) decode(stage, b, shift);
      emit_norm(stage, {}, shift);
    }
    for (const Bucket& b : stage.buckets()) {
      if (at_once) decode(stage, b, shift);
      emit_update(stage, b, {}, shift);
    }
  }

 private:
  program::Kernel kernel(const Stage& stage, const Bucket& b, program::KernelKind kind) const {
    const plan::Exchange& x = stage.plan().exchange;
    const std::int64_t part = b.elements / stage.plan().mesh.dp;
    return {.kind = kind,
            .of = b.begin.back(),
            .keep = part,
            .compressor = compressor_,
            .bits = *x.bits,
            .block = x.block.value_or(part)};
  }

  /// The first phase.
  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    if (!stage.dp()) return;
    const program::Layout partial{.partial = stage.dp()}, shard{.shard = stage.dp()};
    std::vector<program::Ref> refs{
        ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0, partial),
        ref(b.views.parts, program::Slot::target, program::Mode::write, 0, 0, partial)};
    if (b.views.residual != none)
      refs.push_back(ref(b.views.residual, program::Slot::residual, program::Mode::add, 0, 1));
    stage.role().op("compute", kernel(stage, b, program::KernelKind::quantise), std::move(refs),
                    shift);
    stage.role().op(
        "dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_to_all),
        {ref(b.views.parts, program::Slot::source, program::Mode::read, 0, 0, partial),
         ref(b.views.received, program::Slot::target, program::Mode::write, 0, 0, shard)},
        shift);
  }

  /// The second phase, up to the packets of all ranks.
  void sum(Stage& stage, const Bucket& b, int shift) const {
    program::RoleBuilder& role = stage.role();
    const program::Layout shard{.shard = stage.dp()};
    const Id own = stage.own_part(b.views.sum, b);
    role.op("compute", kernel(stage, b, program::KernelKind::dequantise),
            {ref(b.views.received, program::Slot::source, program::Mode::read, 0, 0, shard),
             ref(own, program::Slot::target, program::Mode::write, 0, 0, shard)},
            shift);
    std::vector<program::Ref> refs{
        ref(own, program::Slot::source, program::Mode::read, 0, 0, shard),
        ref(b.views.packet, program::Slot::target, program::Mode::write, 0, 0, shard)};
    if (b.views.sum_residual != none)
      refs.push_back(
          ref(b.views.sum_residual, program::Slot::sum_residual, program::Mode::add, 0, 1, shard));
    role.op("compute", kernel(stage, b, program::KernelKind::quantise), std::move(refs), shift);
    role.op("dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_gather),
            {ref(b.views.packet, program::Slot::source, program::Mode::read, 0, 0, shard),
             ref(b.views.packets, program::Slot::target, program::Mode::write)},
            shift);
  }

  void decode(Stage& stage, const Bucket& b, int shift) const {
    if (!stage.dp()) return;
    stage.role().op("compute", kernel(stage, b, program::KernelKind::dequantise),
                    {ref(b.views.packets, program::Slot::source, program::Mode::read),
                     ref(b.views.sum, program::Slot::target, program::Mode::write)},
                    shift);
  }

  program::Compressor compressor_;
};

}  // namespace

const GradientSync& quantised(program::Compressor compressor) {
  static const Quantised int8(program::Compressor::int8),
      stochastic(program::Compressor::stochastic), sign(program::Compressor::sign);
  switch (compressor) {
    case program::Compressor::int8:
      return int8;
    case program::Compressor::stochastic:
      return stochastic;
    case program::Compressor::sign:
      break;
  }
  return sign;
}

}  // namespace rehearse::methods
