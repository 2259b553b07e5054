// Seconds of local work from the device table (docs/metrics.md): matrix products at the rate that
// their size reaches, memory-bound kernels by the bytes they touch, and a launch for each kernel.
//
//   pass    (flops + products * half_flops) / (peak * efficiency)
//           + bytes / (memory bandwidth * memory efficiency) + kernels * launch
//   kernel  bytes / (memory bandwidth * memory efficiency) + launch
#pragma once
#include "engine/cluster/cluster.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Whether the kind can compute in this dtype.
bool computes_in(const cluster::DeviceKind& kind, program::DType dtype);
/// One pass of a segment over `samples` samples on one of `tp` ranks. Throws InputError when the
/// kind cannot compute in this dtype.
double compute_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model, Id segment,
                       program::Pass pass, int samples, int tp, program::DType dtype);
/// A kernel that touches `bytes` (read plus written).
double kernel_seconds(const cluster::DeviceKind& kind, double bytes);

}  // namespace rehearse::costs
