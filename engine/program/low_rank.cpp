#include "engine/program/low_rank.h"

#include <fmt/format.h>

#include <initializer_list>

#include "engine/base/names.h"

namespace rehearse::program {
namespace {

const Kernel& kernel_of(const Op& op) { return std::get<Kernel>(op.work); }

/// The operand that is M: what is read, or what is written.
Slot matrix_of(KernelKind kind) { return kind == KernelKind::expand ? Slot::target : Slot::source; }

}  // namespace

Factors factors_of(const Program& program, const Role& role, const Op& op) {
  const int rank = kernel_of(op).rank;
  const auto length = [&](Slot slot) {
    const Ref* ref = find(op, slot);
    return ref == nullptr ? 0 : elements_of(program, role, *ref) / rank;
  };
  return {.rows = length(Slot::left), .columns = length(Slot::right), .rank = rank};
}

std::string wrong_factors(const Program& program, const Role& role, const Op& op) {
  const Kernel& kernel = kernel_of(op);
  const bool alone = kernel.kind == KernelKind::orthonormalise;
  const Slot matrix = matrix_of(kernel.kind);
  for (const Slot slot : {Slot::left, Slot::right, matrix}) {
    if (alone && slot != Slot::left) continue;
    const Ref* ref = find(op, slot);
    if (ref == nullptr) return fmt::format("no {} operand", name_of(slot));
    if (slot != matrix && elements_of(program, role, *ref) % kernel.rank != 0)
      return fmt::format("the {} factor of {} elements has no {} equal columns", name_of(slot),
                         elements_of(program, role, *ref), kernel.rank);
  }
  if (alone) return "";
  const Factors f = factors_of(program, role, op);
  for (const Slot slot : {matrix, Slot::residual})
    if (const Ref* ref = find(op, slot);
        ref != nullptr && elements_of(program, role, *ref) != f.rows * f.columns)
      return fmt::format("factors of {} rows and {} columns, but the {} has {} elements", f.rows,
                         f.columns, name_of(slot), elements_of(program, role, *ref));
  return "";
}

double flops_of(KernelKind kind, const Factors& f) {
  const double other = static_cast<double>(kind == KernelKind::orthonormalise ? f.rank : f.columns);
  return 2 * static_cast<double>(f.rows) * other * f.rank;
}

int launches_of(KernelKind kind, const Factors& f) {
  return kind == KernelKind::orthonormalise ? 3 * f.rank : 1;
}

}  // namespace rehearse::program
