// Seconds of one pass of a segment on a kind of device, from the model's exact counts and the
// device table: matrix products by the efficiency curve, memory-bound kernels by the bytes they
// move, and a launch for each.
#pragma once
#include "engine/cluster.h"
#include "engine/model.h"

namespace rehearse {

/// Throws InputError when the device cannot compute in this type.
double assumed_seconds(const ModelSpec& model, Id segment, Pass pass, int samples, int tp,
                       DType dtype, const DeviceKind& kind);

}  // namespace rehearse
