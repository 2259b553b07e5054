#include "engine/costs/device_time.h"

#include <fmt/format.h>

#include "engine/base/errors.h"

namespace rehearse::costs {
namespace {

/// Number of matrix products in a segment's pass. Each adds `half_flops` (see device_time.h).
int products_of(const model::ModelSpec& model, model::SegmentKind kind, program::Pass pass) {
  const int forward = kind == model::SegmentKind::attention ? 4  // qkv, scores, context, projection
                      : kind == model::SegmentKind::mlp
                          ? (model.family == model::Family::llama ? 3 : 2)
                      : kind == model::SegmentKind::head ? 1
                                                         : 0;
  return pass == program::Pass::backward ? 2 * forward : forward;
}

FlopsPerSecond peak_of(const cluster::DeviceKind& kind, program::DType dtype) {
  return dtype == program::DType::bf16  ? kind.peak_bf16
         : dtype == program::DType::f16 ? kind.peak_f16
                                        : kind.peak_f32;
}

}  // namespace

bool computes_in(const cluster::DeviceKind& kind, program::DType dtype) {
  return peak_of(kind, dtype).value > 0;
}

double compute_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model, Id segment,
                       program::Pass pass, int samples, int tp, program::DType dtype) {
  if (!computes_in(kind, dtype))
    throw InputError(fmt::format("method.precision: {} cannot compute in {}; f32 and f16 can",
                                 kind.name, dtype == program::DType::bf16 ? "bf16" : "this type"));
  const model::SegmentWork work = work_of(model, segment, pass, samples, tp, dtype);
  double seconds = 0;
  if (work.flops.value > 0)
    seconds =
        ((work.flops + products_of(model, model.segments[segment].kind, pass) * kind.half_flops) /
         (peak_of(kind, dtype) * kind.efficiency))
            .value;
  return seconds + work.traffic.value / (kind.memory_bandwidth.value * kind.memory_efficiency) +
         work.kernels * kind.launch.value;
}

double kernel_seconds(const cluster::DeviceKind& kind, double bytes) {
  return bytes / (kind.memory_bandwidth.value * kind.memory_efficiency) + kind.launch.value;
}

}  // namespace rehearse::costs
