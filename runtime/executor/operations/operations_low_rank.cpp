// Executes the kernels of low-rank exchanges, and the one that blends momenta.
#include "runtime/executor/operations/prepared.h"
#include "runtime/kernels/low_rank.h"

namespace rehearse::runtime {

void Operations::low_rank(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const auto read = [&](program::Slot slot) {
    return memory_.read(p.need(slot), step).data_ptr<float>();
  };
  const auto write = [&](program::Slot slot) {
    return memory_.write(p.need(slot), step).data_ptr<float>();
  };
  float* residual = nullptr;
  if (const Operand* operand = p.at(program::Slot::residual))
    residual = memory_.write(*operand, step).data_ptr<float>();
  Kernels& on = kernels(p);
  const program::Factors size = factors_of(program_, role_, *p.op);
  switch (work.kind) {
    case program::KernelKind::project: {
      const float* const source = read(program::Slot::source);
      if (residual != nullptr) on.add_to_residual(source, residual, size.rows * size.columns);
      return on.project(size, residual != nullptr ? residual : source, read(program::Slot::right),
                        write(program::Slot::left));
    }
    case program::KernelKind::orthonormalise:
      return on.orthonormalise(size, write(program::Slot::left));
    case program::KernelKind::project_back:
      return on.project_back(size, read(program::Slot::source), read(program::Slot::left),
                             write(program::Slot::right));
    case program::KernelKind::expand:
      return on.expand(size, read(program::Slot::left), read(program::Slot::right),
                       static_cast<float>(work.scale), write(program::Slot::target), residual);
    default:
      throw ProgramError(fmt::format("op {} is no kernel on factors", p.id));
  }
}

void Operations::draw(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const Operand& target = p.need(program::Slot::target);
  runtime::draw(random_key(train_.seed, Draw::factor, static_cast<std::uint64_t>(step), 0), work.of,
                memory_.write(target, step).data_ptr<float>(), target.elements);
}

void Operations::momentum(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const Operand& target = p.need(program::Slot::target);
  const auto* const moment = memory_.read(p.need(program::Slot::moment1), step).data_ptr<float>();
  auto* const blended = memory_.write(target, step).data_ptr<float>();
  kernels(p).blend_momentum(train_.beta1, work.scale, moment, blended, target.elements);
}

}  // namespace rehearse::runtime
