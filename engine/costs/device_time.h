// Seconds of local work by the device table: a matrix product at the rate that its size reaches, a
// memory-bound kernel by the bytes that it touches, and a launch for each kernel (docs/metrics.md).
#pragma once
#include "engine/cluster/cluster.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Whether it has arithmetic of this type at all.
bool computes_in(const cluster::DeviceKind& kind, program::DType dtype);
/// One pass of a segment over `samples` samples on one of `tp` ranks. Throws InputError when the
/// kind has no arithmetic of this type.
double compute_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model, Id segment,
                       program::Pass pass, int samples, int tp, program::DType dtype);
/// A kernel that touches `bytes` (read plus written).
double kernel_seconds(const cluster::DeviceKind& kind, double bytes);

}  // namespace rehearse::costs
