// Checks the operands of kernels. Part of program_tables.h.
#pragma once
#include <string>

#include "engine/program/program.h"

namespace rehearse::program {

/// Throws ProgramError that quotes the op.
[[noreturn]] void refuse(const Program& p, const Role& role, Id op, const std::string& why);
/// Which operands a kernel has, of which sizes and types. Throws ProgramError.
void check_kernel(const Program& p, const Role& role, Id op, const Kernel& kernel);

}  // namespace rehearse::program
