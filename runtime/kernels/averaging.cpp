#include "runtime/kernels/averaging.h"

#include "engine/base/errors.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {
namespace {

void weigh(const Average& x) {
  const float* const source = x.sources.front();
  for (std::int64_t i = 0; i < x.elements; ++i) x.target[i] = x.scale * source[i];
}

void drift(const Average& x) {
  const float scale = x.share == nullptr ? x.scale : *x.share * x.scale;
  const float* const source = x.sources.front();
  for (std::int64_t i = 0; i < x.elements; ++i)
    x.target[i] = drifted(scale, x.anchor[i], source[i]);
}

void outer_step(const Average& x) {
  const float* const gradient = x.sources.front();
  for (std::int64_t i = 0; i < x.elements; ++i) {
    nesterov(x.scale, x.momentum, gradient[i], x.anchor[i], x.moment[i]);
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
  for (std::int64_t i = 0; i < x.elements; ++i) {
    float sum = x.target[i];
    for (const float* const source : x.sources) sum += source[i];
    x.target[i] = x.scale * sum;
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
