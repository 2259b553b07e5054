// What a step's gradients say to the kernels that use them. Both numbers stand in the memory of the
// device. Only kernels read them, because the host that issues an op may be ahead of the device.
#pragma once
#include <cmath>

namespace rehearse::runtime {

struct NormAndScale {
  /// Sum of squares over all gradients, still multiplied by the loss scale. Null: not computed.
  const float* squares = nullptr;
  /// Null: losses are not scaled.
  const float* loss_scale = nullptr;

  /// False: a gradient overflowed, and the step's update is skipped.
  bool finite() const { return squares == nullptr || std::isfinite(*squares); }
  float scale() const { return loss_scale == nullptr ? 1 : *loss_scale; }
};

}  // namespace rehearse::runtime
