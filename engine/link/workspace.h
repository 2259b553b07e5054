// Memory that no storage of a program names. Of an op, while it runs: gradients of query, key and
// value within attention's backward, a dropout mask applied to a copy, a sum that is added to what
// is there. Counted from the blocks in models/, pass by pass; tests/models/memory_test.cpp holds
// the counts to an allocator. Of a rank, all the time: its batch. docs/program.md says what is in
// no plan.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::link {

/// Bytes of a pass on one of `tp` ranks beyond its operands and what it keeps, at their peak. What
/// a library copies for itself (16-bit products on CPUs) is not in it.
std::int64_t workspace_bytes(const model::ModelSpec& model, Id segment, program::Pass pass,
                             int samples, int tp, program::DType dtype);

/// Bytes of an op of a role.
using Workspace =
    std::function<std::int64_t(const program::Program&, const program::Role&, const program::Op&)>;
/// `link`, with workspace planned like a value that lives as long as its op.
LinkedProgram link(program::Program program, const Workspace& workspace);
/// `link` with all that a model's ranks need besides: workspace as above, batches as buffers.
LinkedProgram link(program::Program program, const model::ModelSpec& model);

/// Samples of each micro-batch that a role computes, by micro-batch.
std::vector<int> samples_of(const program::Role& role);
/// A token and its label, both of 64 bits.
inline constexpr std::int64_t bytes_per_token = 16;

}  // namespace rehearse::link
