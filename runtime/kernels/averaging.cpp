#include "runtime/kernels/averaging.h"

#include <algorithm>

namespace rehearse::runtime {

void weigh(float scale, const float* source, float* target, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) target[i] = scale * source[i];
}

void drift(float scale, const float* anchor, const float* source, float* target,
           std::int64_t elements) {
  if (scale == 0) {
    std::fill_n(target, elements, 0.0F);
    return;
  }
  for (std::int64_t i = 0; i < elements; ++i) target[i] = scale * (anchor[i] - source[i]);
}

void outer_step(float lr, float momentum, const float* gradient, float* anchor, float* moment,
                float* target, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    moment[i] = momentum * moment[i] + gradient[i];
    anchor[i] -= lr * (gradient[i] + momentum * moment[i]);
    target[i] = anchor[i];
  }
}

void move_by_mean(float scale, float share, const float* sum, float* anchor, float* target,
                  std::int64_t elements) {
  const float factor = share == 0 ? 0 : scale / share;
  for (std::int64_t i = 0; i < elements; ++i) {
    anchor[i] -= factor * sum[i];
    target[i] = anchor[i];
  }
}

void mix(float scale, std::span<const float* const> sources, float* target, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    float sum = target[i];
    for (const float* const source : sources) sum += source[i];
    target[i] = scale * sum;
  }
}

}  // namespace rehearse::runtime
