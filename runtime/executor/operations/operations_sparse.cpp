// Prepares and executes the kernels of sparse exchanges: select and scatter_add.
#include "engine/program/packets.h"
#include "runtime/executor/operations/prepared.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

/// The scatter_add that reads packets of varying size (threshold selector) from this storage; null:
/// the storage holds no such packets.
const program::Kernel* Operations::packets_of(Id storage) const {
  for (const program::Op& op : role_.ops) {
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    if (kernel != nullptr && kernel->kind == program::KernelKind::scatter_add &&
        kernel->selector == program::Selector::threshold &&
        role_.views[find(op, program::Slot::source)->view].storage == storage)
      return kernel;
  }
  return nullptr;
}

void Operations::prepare_kernel(Prepared& p, const program::Kernel& kernel) {
  if (quantises(kernel)) {
    prepare_packets(p, kernel);
    return;
  }
  if ((accelerator_ == nullptr || computes_on_host(p)) &&
      (kernel.kind == program::KernelKind::select || kernel.coding == program::Coding::values))
    host_kernels_.fit(kernel);
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    const program::Ref& ref = p.op->refs[i];
    const std::int64_t elements = p.operands[i].elements;
    const bool packets =
        (kernel.kind == program::KernelKind::select && ref.slot == program::Slot::target) ||
        (kernel.kind == program::KernelKind::scatter_add && ref.slot == program::Slot::source);
    if (packets) {
      p.count = elements / packet_bytes(kernel);
      p.operands[i] = memory_.operand(ref, 0, p.count * packet_room(kernel));
    }
    if (kernel.kind == program::KernelKind::scatter_add && ref.slot == program::Slot::target &&
        ref.layout.shard != 0)
      p.part_begin = tensors::place_of(program_, ref.layout.shard, rank_).index * elements;
  }
}

void Operations::select(Prepared& p, const program::Kernel& work, std::int64_t step) {
  auto* const packet =
      static_cast<std::byte*>(memory_.write(p.need(program::Slot::target), step).data_ptr());
  const Operand& source = p.need(program::Slot::source);
  const void* const gradient = memory_.read(source, step).data_ptr();
  auto* const residual = memory_.write(p.need(program::Slot::residual), step).data_ptr<float>();
  const SelectStep now = {.step = step, .seed = train_.seed, .gradients = norm_and_scale(p, step)};
  const Operand* threshold = p.at(program::Slot::threshold);
  kernels(p).select(
      work, now, gradient, source.dtype, residual,
      threshold == nullptr ? nullptr : memory_.write(*threshold, step).data_ptr<float>(), packet);
}

void Operations::scatter_add(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const Operand& target = p.need(program::Slot::target);
  const auto* const packets =
      static_cast<const std::byte*>(memory_.read(p.need(program::Slot::source), step).data_ptr());
  auto* const sum = memory_.write(target, step).data_ptr<float>();
  const std::int64_t begin = p.part_begin, end = begin + target.elements;
  const SelectStep now = {.step = step, .seed = train_.seed, .gradients = norm_and_scale(p, step)};
  kernels(p).scatter_add(work, now, packets, p.count, begin, end, sum);
}

}  // namespace rehearse::runtime
