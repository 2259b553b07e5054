// How the ranks of a program divide a segment.
#pragma once
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::model {

/// The sizes of the axes tp and cp, whether sequence parallelism divides the tokens too (then
/// sums are scattered within tensor-parallel groups), whether cp ranks exchange heads for tokens,
/// whether a backward has two halves, and whether linear layers multiply in FP8.
TensorSplit tensor_split(const program::Program& program);

}  // namespace rehearse::model
