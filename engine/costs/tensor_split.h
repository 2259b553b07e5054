// How the ranks of a program divide a segment.
#pragma once
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// The sizes of the axes tp and cp, whether sequence parallelism divides the tokens too (then
/// something gathers within tensor-parallel groups), and whether cp ranks exchange heads for
/// tokens.
model::TensorSplit tensor_split(const program::Program& program);
/// The part of attention that an op of a role computes. All ranks of a role have one place along cp
/// if the op has a block.
model::Piece piece_of(const program::Program& program, const program::Role& role,
                      const program::Compute& compute, const model::ModelSpec& model);

}  // namespace rehearse::costs
