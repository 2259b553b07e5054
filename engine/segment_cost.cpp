// See segment_cost.h.
#include "engine/segment_cost.h"

#include <fmt/format.h>

#include "engine/errors.h"

namespace rehearse {
namespace {

/// Matrix products of a segment's pass: each pays the efficiency curve's start once.
int products_of(const ModelSpec& model, SegmentKind kind, Pass pass) {
  const int forward = kind == SegmentKind::attention ? 4  // qkv, scores, context, projection
                      : kind == SegmentKind::mlp     ? (model.family == Family::llama ? 3 : 2)
                      : kind == SegmentKind::head    ? 1
                                                     : 0;
  return pass == Pass::backward ? 2 * forward : forward;
}

FlopsPerSecond peak_of(const DeviceKind& kind, DType dtype) {
  return dtype == DType::bf16  ? kind.peak_bf16
         : dtype == DType::f16 ? kind.peak_f16
                               : kind.peak_f32;
}

}  // namespace

double assumed_seconds(const ModelSpec& model, Id segment, Pass pass, int samples, int tp,
                       DType dtype, const DeviceKind& kind) {
  const SegmentWork work = work_of(model, segment, pass, samples, tp, dtype);
  const FlopsPerSecond peak = peak_of(kind, dtype);
  if (peak.value <= 0)
    throw InputError(fmt::format("method.precision: {} cannot compute in {}; f32 and f16 can",
                                 kind.name, dtype == DType::bf16 ? "bf16" : "this type"));
  double seconds = 0;
  if (work.flops.value > 0)
    seconds =
        ((work.flops + products_of(model, model.segments[segment].kind, pass) * kind.half_flops) /
         (peak * kind.efficiency))
            .value;
  return seconds + work.traffic.value / (kind.memory_bandwidth.value * kind.memory_efficiency) +
         work.kernels * kind.launch.value;
}

}  // namespace rehearse
