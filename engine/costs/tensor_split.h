// How the ranks of a program divide a segment.
#pragma once
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// The size of the axis tp, and whether sequence parallelism divides the tokens too: then something
/// gathers within tensor-parallel groups.
model::TensorSplit tensor_split(const program::Program& program);

}  // namespace rehearse::costs
