// The part of attention that an op computes, where ranks divide a sequence.
#pragma once
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// What an op of a role computes of its segment. All ranks of a role have one place along cp
/// if the op has a block.
model::Piece piece_of(const program::Program& program, const program::Role& role,
                      const program::Compute& compute, const model::ModelSpec& model);

}  // namespace rehearse::costs
