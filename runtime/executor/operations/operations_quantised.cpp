// Prepares and executes the kernels of quantised exchanges: quantise and dequantise.
#include "engine/program/packets.h"
#include "runtime/executor/operations/prepared.h"
#include "runtime/kernels/quantise.h"

namespace rehearse::runtime {

void Operations::prepare_packets(Prepared& p, const program::Kernel& kernel) {
  const bool packs = kernel.kind == program::KernelKind::quantise;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    const program::Ref& ref = p.op->refs[i];
    const Operand& operand = p.operands[i];
    if (ref.slot != (packs ? program::Slot::source : program::Slot::target)) {
      if (ref.slot == program::Slot::source || ref.slot == program::Slot::target)
        p.count = operand.elements / quantised_bytes(kernel);
      continue;
    }
    p.part = ref.layout.shard != 0;
    if (p.part)
      p.part_begin = tensors::place_of(program_, ref.layout.shard, rank_).index * operand.elements;
    // Ranks draw independently of each other, and once for their gradient, once for their part of
    // the sum. Tensor ranks draw alike for parameters that all of them hold.
    const std::vector<tensors::ParamPiece>& pieces = map_.storages[operand.storage].pieces;
    const auto place =
        static_cast<std::uint64_t>(tensors::place_of(program_, data_axes(program_), rank_).index);
    p.key = (pieces.empty() ? 0 : std::uint64_t{pieces.front().group} << 32) + 2 * place + p.part;
  }
}

void Operations::quantise(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const Operand& source = p.need(program::Slot::source);
  const Operand* residual = p.at(program::Slot::residual);
  if (residual == nullptr) residual = p.at(program::Slot::sum_residual);
  const RandomKey key =
      random_key(train_.seed, Draw::quantise, static_cast<std::uint64_t>(step), p.key);
  const void* const gradient = memory_.read(source, step).data_ptr();
  float* const left =
      residual == nullptr ? nullptr : memory_.write(*residual, step).data_ptr<float>();
  auto* const packets =
      static_cast<std::byte*>(memory_.write(p.need(program::Slot::target), step).data_ptr());
  const std::int64_t parts = p.part ? 1 : p.count;
  kernels(p).quantise(work, key, gradient, source.dtype, p.part_begin, parts, left, packets);
}

void Operations::dequantise(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const auto* const packets =
      static_cast<const std::byte*>(memory_.read(p.need(program::Slot::source), step).data_ptr());
  auto* const target = memory_.write(p.need(program::Slot::target), step).data_ptr<float>();
  if (p.part)
    kernels(p).dequantise_sum(work, packets, p.count, p.part_begin, target);
  else
    kernels(p).dequantise(work, packets, p.count, target);
}

}  // namespace rehearse::runtime
