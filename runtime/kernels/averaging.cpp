#include "runtime/kernels/averaging.h"

#include "engine/base/errors.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {
namespace {

// Numbers are copied out of the Average: stores to its target might change them, as far as the
// compiler knows, and so its loops would not be vectorised.

void weigh(const Average& x) {
  const float* const source = x.sources.front();
  const float scale = x.scale;
  for (std::int64_t i = 0; i < x.elements; ++i) x.target[i] = scale * source[i];
}

void drift(const Average& x) {
  const float scale = x.share == nullptr ? x.scale : *x.share * x.scale;
  const float* const source = x.sources.front();
  for (std::int64_t i = 0; i < x.elements; ++i)
    x.target[i] = drifted(scale, x.anchor[i], source[i]);
}

void outer_step(const Average& x) {
  const float* const gradient = x.sources.front();
  const float lr = x.scale, momentum = x.momentum;
  for (std::int64_t i = 0; i < x.elements; ++i) {
    nesterov(lr, momentum, gradient[i], x.anchor[i], x.moment[i]);
    x.target[i] = x.anchor[i];
  }
}

void step_by_share(const Average& x) {
  const float rate = rate_of_share(x.scale, *x.share);
  const float* const sum = x.sources.front();
  for (std::int64_t i = 0; i < x.elements; ++i) {
    x.anchor[i] -= rate * sum[i];
    x.target[i] = x.anchor[i];
  }
}

void mix(const Average& x) {
  const float scale = x.scale;
  for (std::int64_t i = 0; i < x.elements; ++i) {
    float sum = x.target[i];
    for (const float* const source : x.sources) sum += source[i];
    x.target[i] = scale * sum;
  }
}

}  // namespace

void average(const Average& work) {
  switch (work.kind) {
    case program::KernelKind::weigh:
      return weigh(work);
    case program::KernelKind::drift:
      return drift(work);
    case program::KernelKind::outer_step:
      return work.share == nullptr ? outer_step(work) : step_by_share(work);
    case program::KernelKind::mix:
      return mix(work);
    default:
      throw ProgramError("a kernel that averages no weights");
  }
}

}  // namespace rehearse::runtime
