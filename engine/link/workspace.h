// Memory that is not in any storage of a program. While an op runs: its temporaries, for example
// the gradients of query, key and value in attention's backward pass, a masked copy of the gradient
// under dropout, or a received sum before it is added to its target. During the whole run: the
// rank's batch, and 8-bit copies of weights. The counts follow the blocks in models/;
// tests/models/memory_test.cpp compares them with an allocator. docs/program.md lists the memory
// that is not counted.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::link {

/// Peak bytes of a pass on one of the ranks of `split`, without its operands and the activations
/// that it keeps. Copies that a library makes internally (16-bit matrix products on CPUs) are not
/// counted.
std::int64_t workspace_bytes(const model::ModelSpec& model, Id segment, program::Pass pass,
                             int samples, model::TensorSplit split, program::DType dtype);

/// Returns the workspace bytes of an op of a role.
using Workspace =
    std::function<std::int64_t(const program::Program&, const program::Role&, const program::Op&)>;
/// `link`, with each op's workspace planned like a value that lives while the op runs.
LinkedProgram link(program::Program program, const Workspace& workspace);
/// `link` with the workspace of a model's ops, and with each rank's batch and the 8-bit copies of
/// weights that it keeps counted as buffers.
LinkedProgram link(program::Program program, const model::ModelSpec& model);

/// Samples in each micro-batch that a role computes, indexed by micro-batch.
std::vector<int> samples_of(const program::Role& role);
/// A token and its label, 64 bits each.
inline constexpr std::int64_t bytes_per_token = 16;

}  // namespace rehearse::link
