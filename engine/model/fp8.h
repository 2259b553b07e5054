// FP8 in the layers of a model (method.precision = "fp8"). The products of linear layers (query,
// key and value; attention's output; both layers of an MLP) multiply 8-bit operands into 16-bit
// results (Micikevicius et al., FP8 Formats for Deep Learning, 2022). Attention, norms, the
// embedding and the head stay in bf16, and so do weights, gradients and whatever ranks send to each
// other.
//
// An operand is scaled by its largest element before it is converted, in kernels that move memory:
//
//   operand      dynamic (torchao)                        delayed (Transformer Engine)
//   input        forward and backward: largest, convert   forward: convert
//   from a norm  the same                                 the norm writes it; backward: transpose
//   weight       forward and backward: largest, convert   forward of the first micro-batch: convert
//   gradient     backward: largest, convert               backward: convert
//
// The two products of a backward read the gradient along different dimensions, so it is written
// twice. Delayed scaling does the same with input and weight, and keeps them for backward.
#pragma once
#include <vector>

#include "engine/model/model.h"
#include "engine/model/sizes.h"

namespace rehearse::model {

/// Whether segments of this kind have products in FP8.
bool multiplies_in_fp8(SegmentKind kind);
/// The bytes that each kernel moves to convert `elements` of `element` bytes into `copies` of 8
/// bits.
std::vector<double> conversion(software::Fp8 scaling, double elements, double element, int copies);
/// What forward keeps for backward beyond what it keeps in bf16, in bytes per token; `norm` is the
/// number of elements per token of the norm's output that it keeps. Below 0: it keeps less.
double kept_in_fp8(const ModelSpec& model, Id segment, const TensorSplit& split, const Sizes& sizes,
                   double norm);
/// Bytes of 8-bit operands that a pass holds while it runs.
std::int64_t fp8_workspace(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                           const TensorSplit& split);
/// Bytes of the 8-bit weights of a segment that stay on a rank from step to step.
std::int64_t fp8_weights(const ModelSpec& model, Id segment, const TensorSplit& split);

}  // namespace rehearse::model
