// What a program's tables may say, checked before anybody allocates by them: counts and ranges
// against the world, names against each other. One definition for text that is read and for
// programs that are linked.
#pragma once
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::program {

/// A million ranks: 131,072 nodes of eight.
inline constexpr int most_ranks = 1 << 20;
/// Of a rank's storages in all: what a double still counts exactly.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 53;
/// Shifts beyond this would only make the linker look at more steps.
inline constexpr int most_shift = 15;

// Each throws ProgramError that says what is wrong and what would be right.

/// World and mesh: every place of the mesh is a rank.
void check_mesh(const Program& program);
/// A channel's group: axes of the mesh, or one colour for each rank and a bit of its own.
void check_channel(const Program& program, const Channel& channel);
/// Counts of a storage; returns its bytes.
std::int64_t check_storage(const Role& role, const Storage& storage);
/// Inside its storage, in equal parts.
void check_view(const Program& program, const Role& role, const View& view);
/// Operands, waits, channels and numbers of an op.
void check_op(const Program& program, const Role& role, Id op);

/// All of the above, and what only the whole tells: the bytes of a rank, instances that no op
/// names.
void check_tables(const Program& program);

}  // namespace rehearse::program
