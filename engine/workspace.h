// Memory that an op needs only while it runs and that no storage names: gradients of query, key and
// value within attention's backward, a dropout mask applied to a copy. Counted from the blocks in
// models/, pass by pass; tests/models/memory_test.cpp holds the counts to an allocator.
#pragma once
#include <cstdint>
#include <functional>

#include "engine/link.h"
#include "engine/model.h"

namespace rehearse {

/// Bytes of a pass on one of `tp` ranks beyond its operands and what it keeps, at their peak. What
/// a library copies for itself (16-bit products on CPUs) is not in it.
std::int64_t workspace_bytes(const ModelSpec& model, Id segment, Pass pass, int samples, int tp,
                             DType dtype);

/// Bytes of an op of a role.
using Workspace = std::function<std::int64_t(const Program&, const Role&, const Op&)>;
/// `link`, with workspace planned like a value that lives as long as its op.
LinkedProgram link(Program program, const Workspace& workspace);
LinkedProgram link(Program program, const ModelSpec& model);

}  // namespace rehearse
