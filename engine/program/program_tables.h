// Checks a program's tables: counts and ranges against the world, indices against each other. The
// parser and the linker use the same checks, before anything of a stated size is allocated.
#pragma once
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::program {

/// A million ranks: 131,072 nodes of eight.
inline constexpr int most_ranks = 1 << 20;
/// The most bytes of all storages of a rank: larger whole numbers are not exact in a double.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 53;
/// The largest shift. Larger shifts would only make the linker look at more steps.
inline constexpr int most_shift = 15;
/// The longest pause, in seconds.
inline constexpr double most_pause = 3600;

// Each check throws ProgramError that says what is wrong and what would be right.

/// World size and mesh: the mesh has no more places than the world has ranks.
void check_mesh(const Program& program);
/// A channel's group: axes of the mesh, or one colour per rank and a bit beyond the mesh.
void check_channel(const Program& program, const Channel& channel);
/// The counts of a storage. Returns its bytes, all instances and versions included.
std::int64_t check_storage(const Role& role, const Storage& storage);
/// The view is inside its storage, and its slices are equal.
void check_view(const Program& program, const Role& role, const View& view);
/// The operands, waits, channels and numbers of an op.
void check_op(const Program& program, const Role& role, Id op);

/// All of the above, and checks of the whole program: the bytes of a rank, and that no storage has
/// more instances than ops refer to.
void check_tables(const Program& program);

}  // namespace rehearse::program
