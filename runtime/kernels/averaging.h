// The arithmetic by which ranks that train apart average their weights (program::KernelKind): one
// pass over flat plain fp32 memory each, element by element.
#pragma once
#include <cstdint>
#include <span>

namespace rehearse::runtime {

/// target = scale * source; in place when both are equal.
void weigh(float scale, const float* source, float* target, std::int64_t elements);

/// target = scale * (anchor - source); zero if the scale is, whatever the source.
void drift(float scale, const float* anchor, const float* source, float* target,
           std::int64_t elements);

/// SGD with Nesterov momentum as torch.optim.SGD(nesterov=True), by `gradient`:
/// moment = momentum * moment + gradient; anchor -= lr * (gradient + momentum * moment). Then
/// target = anchor.
void outer_step(float lr, float momentum, const float* gradient, float* anchor, float* moment,
                float* target, std::int64_t elements);

/// anchor -= scale * sum / share, unless share is 0; then target = anchor.
void move_by_mean(float scale, float share, const float* sum, float* anchor, float* target,
                  std::int64_t elements);

/// target = scale * (target + the sum of all sources), added in their order.
void mix(float scale, std::span<const float* const> sources, float* target, std::int64_t elements);

}  // namespace rehearse::runtime
