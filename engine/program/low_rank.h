// Kernels on the factors of a matrix M (rows x columns), of which a low-rank exchange sends P (rows
// x rank) and Q (columns x rank) in place of M (Vogels et al., NeurIPS 2019):
//
//   project         P = M Q                                2 rows columns rank FLOPs
//   orthonormalise  the columns of P, one after the other  2 rows rank^2
//   project_back    Q = M^T P                              2 rows columns rank
//   expand          M = P Q^T                              2 rows columns rank
#pragma once
#include <cstdint>
#include <string>

#include "engine/program/program.h"

namespace rehearse::program {

/// Whether the kernel is one of the four.
constexpr bool factorises(const Kernel& kernel) {
  return kernel.kind == KernelKind::project || kernel.kind == KernelKind::orthonormalise ||
         kernel.kind == KernelKind::project_back || kernel.kind == KernelKind::expand;
}

/// The sizes of the factors of such a kernel's matrix; columns 0: the kernel does not use Q.
struct Factors {
  std::int64_t rows = 0, columns = 0;
  int rank = 0;
};
Factors factors_of(const Program& program, const Role& role, const Op& op);

/// Why the operands of such a kernel do not fit each other; empty: they do.
std::string wrong_factors(const Program& program, const Role& role, const Op& op);

/// FLOPs of such a kernel, and how many kernels a device launches for it: three for each column
/// that becomes orthonormal (its length, a division, and its part in later columns), else one.
double flops_of(KernelKind kind, const Factors& factors);
int launches_of(KernelKind kind, const Factors& factors);

}  // namespace rehearse::program
