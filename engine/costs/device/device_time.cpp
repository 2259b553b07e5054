#include "engine/costs/device/device_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/base/errors.h"

namespace rehearse::costs {
namespace {

/// A tile of a product's result, and the part of a multiprocessor's rate that it reaches: a smaller
/// tile reads each operand more often from the chip's memory.
struct Tile {
  double rows = 0, columns = 0, reached = 1;
};
constexpr std::array tiles{Tile{256, 128, 1},   Tile{128, 256, 1},   Tile{128, 128, 0.93},
                           Tile{128, 64, 0.75}, Tile{64, 128, 0.75}, Tile{64, 64, 0.55}};
/// Steps of the inner dimension that a tile takes before its multiplications run at full rate, and
/// to write its result.
constexpr double prologue = 70;

FlopsPerSecond peak_of(const cluster::DeviceKind& kind, program::DType dtype, bool tf32) {
  if (dtype == program::DType::bf16) return kind.peak_bf16;
  if (dtype == program::DType::f16) return kind.peak_f16;
  return tf32 && kind.peak_tf32.value > 0 ? kind.peak_tf32 : kind.peak_f32;
}

double product_seconds(const cluster::DeviceKind& kind, const model::Launch& launch, double rate) {
  double best =
      kind.multiprocessors == 0 ? launch.flops() / rate : std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    if (kind.multiprocessors == 0) break;
    const double count = launch.batch * std::ceil(launch.rows / tile.rows) *
                         std::ceil(launch.columns / tile.columns);
    const double waves = std::ceil(count / kind.multiprocessors);
    best = std::min(best, waves * 2 * tile.rows * tile.columns * (launch.inner + prologue) /
                              (rate / kind.multiprocessors * tile.reached));
  }
  return std::max(best, kernel_seconds(kind, launch.bytes) - kind.launch.value);
}

}  // namespace

bool computes_in(const cluster::DeviceKind& kind, program::DType dtype) {
  return peak_of(kind, dtype, false).value > 0;
}

double launch_seconds(const cluster::DeviceKind& kind, const model::Launch& launch,
                      program::DType dtype, bool tf32) {
  const double rate = (launch.fp8 ? kind.peak_fp8 : peak_of(kind, dtype, tf32)).value *
                      (dtype == program::DType::f32 ? kind.f32_efficiency : kind.efficiency);
  switch (launch.kind) {
    case model::Launch::Kind::product:
      return product_seconds(kind, launch, rate) + kind.launch.value;
    case model::Launch::Kind::attention:
      return launch.flops() / (rate * kind.attention_efficiency) + kind.launch.value;
    case model::Launch::Kind::flash:
      return launch.flops() / (rate * kind.flash_efficiency * launch.rate) + kind.launch.value;
    case model::Launch::Kind::memory:
      break;
  }
  return kernel_seconds(kind, launch.bytes / launch.rate);
}

double compute_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model, Id segment,
                       program::Pass pass, int samples, model::TensorSplit split,
                       program::DType dtype, const model::Piece& piece) {
  if (!computes_in(kind, dtype))
    throw InputError(fmt::format("method.precision: {} cannot compute in {}; f32 and f16 can",
                                 kind.name, dtype == program::DType::bf16 ? "bf16" : "this type"));
  if (split.fp8 && kind.peak_fp8.value == 0)
    throw InputError(
        fmt::format("method.precision: {} cannot compute in fp8; bf16 can", kind.name));
  double seconds = 0;
  for (const model::Launch& launch :
       launches_of(model, segment, pass, samples, split, dtype, piece))
    seconds += launch_seconds(kind, launch, dtype, model.software.tf32);
  return seconds;
}

double kernel_seconds(const cluster::DeviceKind& kind, double bytes) {
  return bytes / (kind.memory_bandwidth.value * kind.memory_efficiency) + kind.launch.value;
}

double kernel_seconds(const cluster::DeviceKind& kind, double bytes, double flops, int launches) {
  const double memory = bytes / (kind.memory_bandwidth.value * kind.memory_efficiency),
               arithmetic = flops / (kind.peak_f32.value * kind.f32_efficiency);
  return std::max(memory, arithmetic) + launches * kind.launch.value;
}

}  // namespace rehearse::costs
