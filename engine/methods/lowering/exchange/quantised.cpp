#include "engine/methods/lowering/exchange/quantised.h"

#include <fmt/format.h>

#include <map>

#include "engine/base/names.h"
#include "engine/base/refusal.h"
#include "engine/methods/lowering/updates.h"
#include "engine/program/packets.h"

namespace rehearse::methods {

void Quantised::declare(Stage& stage, Bucket& b) const {
  Replicated::declare(stage, b);
  if (!stage.dp()) return;
  program::RoleBuilder& role = stage.role();
  BucketViews& views = b.views;
  if (stage.plan().gradient_type() != program::DType::f32)
    views.sum = storage_of(role, b, "S.", program::Life::buffer);
  const std::int64_t part = b.elements / stage.plan().mesh.dp;
  if (*stage.plan().exchange.quantised.error_feedback) {
    views.residual = storage_of(role, b, "R.", program::Life::state);
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

void Quantised::finish(Stage& stage, int shift) const {
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
    update(stage, b, shift);
  }
}

program::Kernel Quantised::kernel(const Stage& stage, const Bucket& b,
                                  program::KernelKind kind) const {
  const plan::Exchange& x = stage.plan().exchange;
  const std::int64_t part = b.elements / stage.plan().mesh.dp;
  return {.kind = kind,
          .of = b.begin.back(),
          .keep = part,
          .compressor = compressor_,
          .bits = *x.quantised.bits,
          .block = x.quantised.block.value_or(part)};
}

void Quantised::exchange(Stage& stage, const Bucket& b, int shift) const {
  if (!stage.dp()) return;
  const program::Layout partial{.partial = stage.dp()}, shard{.shard = stage.dp()};
  std::vector<program::Ref> refs{
      ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0, partial),
      ref(b.views.parts, program::Slot::target, program::Mode::write, 0, 0, partial)};
  if (b.views.residual != none)
    refs.push_back(ref(b.views.residual, program::Slot::residual, program::Mode::add, 0, 1));
  const program::When steps = when(stage.plan());
  stage.role().op("compute", kernel(stage, b, program::KernelKind::quantise), std::move(refs),
                  shift, steps);
  stage.role().op("dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_to_all),
                  {ref(b.views.parts, program::Slot::source, program::Mode::read, 0, 0, partial),
                   ref(b.views.received, program::Slot::target, program::Mode::write, 0, 0, shard)},
                  shift, steps);
}

void Quantised::sum(Stage& stage, const Bucket& b, int shift) const {
  program::RoleBuilder& role = stage.role();
  const program::Layout shard{.shard = stage.dp()};
  const program::When steps = when(stage.plan());
  const Id own = stage.own_part(b.views.sum, b);
  role.op("compute", kernel(stage, b, program::KernelKind::dequantise),
          {ref(b.views.received, program::Slot::source, program::Mode::read, 0, 0, shard),
           ref(own, program::Slot::target, program::Mode::write, 0, 0, shard)},
          shift, steps);
  std::vector<program::Ref> refs{
      ref(own, program::Slot::source, program::Mode::read, 0, 0, shard),
      ref(b.views.packet, program::Slot::target, program::Mode::write, 0, 0, shard)};
  if (b.views.sum_residual != none)
    refs.push_back(
        ref(b.views.sum_residual, program::Slot::sum_residual, program::Mode::add, 0, 1, shard));
  role.op("compute", kernel(stage, b, program::KernelKind::quantise), std::move(refs), shift,
          steps);
  role.op("dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_gather),
          {ref(b.views.packet, program::Slot::source, program::Mode::read, 0, 0, shard),
           ref(b.views.packets, program::Slot::target, program::Mode::write)},
          shift, steps);
}

void Quantised::decode(Stage& stage, const Bucket& b, int shift) const {
  if (!stage.dp()) return;
  stage.role().op("compute", kernel(stage, b, program::KernelKind::dequantise),
                  {ref(b.views.packets, program::Slot::source, program::Mode::read),
                   ref(b.views.sum, program::Slot::target, program::Mode::write)},
                  shift, when(stage.plan()));
}

void Quantised::update(Stage& stage, const Bucket& b, int shift) const {
  emit_update(stage, b, {}, shift);
}

void check_codes(const plan::Plan& plan, program::Compressor compressor) {
  const int bits = *plan.exchange.quantised.bits;
  if (!program::codes_have(compressor, bits))
    refuse("bits", fmt::format("{}", bits),
           fmt::format("method \"{}\" has codes of {} bits", plan.method,
                       program::bits_text(compressor)));
  if (const std::int64_t block = plan.exchange.quantised.block.value_or(8); block % 8 != 0)
    refuse("block", fmt::format("{}", block),
           fmt::format("must be a multiple of 8; nearest: {}", (block + 4) / 8 * 8));
}

const GradientSync& quantised(program::Compressor compressor) {
  static const std::map<program::Compressor, Quantised> syncs = [] {
    std::map<program::Compressor, Quantised> all;
    for (const char* name : spellings(program::Compressor{}))
      if (const auto one = from_name<program::Compressor>(name)) all.emplace(*one, Quantised(*one));
    return all;
  }();
  return syncs.at(compressor);
}

}  // namespace rehearse::methods
