#include "runtime/cuda/each.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/numbers.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t block = squares_block, lanes = squares_lanes;

struct Update {
  OptimizerInterval x;
  StepFactors factors;
  const StepScalars* step;
  bool is_adamw, frozen;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    const StepScalars scalars = *step;
    if (scalars.skip) {
      if (x.fresh) store(x.param, x.param_type, i, x.master[i]);
      return;
    }
    const float grad = load(x.grad, x.grad_type, i);
    float weight = x.master != nullptr ? x.master[i] : load(x.param, x.param_type, i);
    float moment1 = load(x.moment1, x.moment_type, i);
    if (frozen) {
      frozen_adamw(factors, scalars, grad, weight, moment1, load(x.moment2, x.moment_type, i));
    } else if (is_adamw) {
      float moment2 = load(x.moment2, x.moment_type, i);
      adamw(factors, scalars, grad, weight, moment1, moment2);
      store(x.moment2, x.moment_type, i, moment2);
    } else {
      sgd(factors, scalars, grad, weight, moment1);
    }
    store(x.moment1, x.moment_type, i, moment1);
    if (x.master != nullptr) x.master[i] = weight;
    store(x.param, x.param_type, i, weight);
  }
};

/// One lane of a block: of its elements lane, lane + lanes ... those in whole rows.
struct LaneSquares {
  Values of;
  float* sums;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t begin = at / lanes * block, lane = at % lanes;
    const std::int64_t count = of.elements - begin < block ? of.elements - begin : block;
    float sum = 0;
    for (std::int64_t i = 0; i + lanes <= count; i += lanes) {
      const float value = load(of.data, of.type, begin + i + lane);
      sum += value * value;
    }
    sums[at] = sum;
  }
};

/// The elements of a block that fill no row, then its lanes.
struct BlockSquares {
  Values of;
  const float* lane_sums;
  double* sums;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t begin = at * block;
    const std::int64_t count = of.elements - begin < block ? of.elements - begin : block;
    double sum = 0;
    for (std::int64_t i = count / lanes * lanes; i < count; ++i) {
      const double value = load(of.data, of.type, begin + i);
      sum += value * value;
    }
    for (std::int64_t lane = 0; lane < lanes; ++lane) sum += lane_sums[at * lanes + lane];
    sums[at] = sum;
  }
};

struct AddBlocks {
  const double* sums;
  std::int64_t count;
  bool first;
  double* total;
  REHEARSE_BOTH void operator()(std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += sums[i];
    *total = (first ? 0 : *total) + sum;
  }
};

struct ToNorm {
  const double* total;
  double scale;
  bool add;
  float* norm;
  REHEARSE_BOTH void operator()(std::int64_t) const {
    *norm = static_cast<float>((add ? *norm : 0) + scale * *total);
  }
};

struct Decide {
  Decision decision;
  NormAndScale gradients;
  SkipCount* skips;
  StepScalars* scalars;
  double* square_norm;
  REHEARSE_BOTH void operator()(std::int64_t) const {
    runtime::decide(decision, gradients, *skips, *scalars, square_norm);
  }
};

struct Observe {
  Values of;
  std::int64_t stride, observed;
  NormAndScale gradients;
  float* state;
  std::uint32_t* too_large;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    if (state[0] < 0 || !gradients.finite()) return;
    const float value = 1 / gradients.scale() * load(of.data, of.type, i * stride);
    if (!(std::fabs(value) < too_large_to_observe)) *too_large = 1;
    float* const mean = state + 1 + i;
    welford(value, state[0] + 1, *mean, mean[observed]);
  }
};

/// After all entries, since these read the number of observations.
struct CountObservation {
  NormAndScale gradients;
  float* state;
  const std::uint32_t* too_large;
  REHEARSE_BOTH void operator()(std::int64_t) const {
    if (state[0] < 0 || !gradients.finite()) return;
    const float count = state[0] + 1;
    state[0] = *too_large != 0 ? -count : count;
  }
};

/// What of an Average its kernels get; `source` is one of its sources.
struct Averaging {
  float scale, momentum;
  const float *share, *source;
  float *anchor, *moment, *target;
};

struct Weigh : Averaging {
  REHEARSE_BOTH void operator()(std::int64_t i) const { target[i] = scale * source[i]; }
};

struct Drift : Averaging {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    target[i] = drifted(share == nullptr ? scale : *share * scale, anchor[i], source[i]);
  }
};

struct OuterStep : Averaging {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    if (share == nullptr)
      nesterov(scale, momentum, source[i], anchor[i], moment[i]);
    else
      anchor[i] -= rate_of_share(scale, *share) * source[i];
    target[i] = anchor[i];
  }
};

struct Mix : Averaging {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    target[i] = scale * (target[i] + source[i]);
  }
};

struct Blend {
  float keep, part;
  const float* moment;
  float* target;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    target[i] = keep * target[i] + part * moment[i];
  }
};

struct Rescale {
  const float* squares;
  float* state;
  REHEARSE_BOTH void operator()(std::int64_t) const { runtime::rescale(squares, state); }
};

}  // namespace

cudaError_t queue_update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                         const StepScalars* scalars, cudaStream_t stream) {
  const bool is_adamw = step.kind == plan::Optimizer::adamw;
  return each(interval.elements, stream,
              Update{interval, factors_of(step, decay), scalars, is_adamw, step.frozen > 0});
}

cudaError_t queue_squares(const Values& values, bool first, float* lane_sums, double* block_sums,
                          double* total, cudaStream_t stream) {
  const std::int64_t blocks = squares_blocks(values.elements);
  cudaError_t error = each(blocks * lanes, stream, LaneSquares{values, lane_sums});
  if (error == cudaSuccess)
    error = each(blocks, stream, BlockSquares{values, lane_sums, block_sums});
  if (error == cudaSuccess) error = each(1, stream, AddBlocks{block_sums, blocks, first, total});
  return error;
}

cudaError_t queue_norm(const double* total, double scale, bool add, float* norm,
                       cudaStream_t stream) {
  return each(1, stream, ToNorm{total, scale, add, norm});
}

cudaError_t queue_decide(const Decision& decision, const NormAndScale& gradients, SkipCount* skips,
                         StepScalars* scalars, double* square_norm, cudaStream_t stream) {
  return each(1, stream, Decide{decision, gradients, skips, scalars, square_norm});
}

cudaError_t queue_observe(const Values& values, int stride, const NormAndScale& gradients,
                          float* state, std::uint32_t* too_large, cudaStream_t stream) {
  const std::int64_t observed = program::observed_entries(values.elements, stride);
  cudaError_t error = cudaMemsetAsync(too_large, 0, sizeof *too_large, stream);
  if (error == cudaSuccess)
    error = each(observed, stream, Observe{values, stride, observed, gradients, state, too_large});
  if (error == cudaSuccess) error = each(1, stream, CountObservation{gradients, state, too_large});
  return error;
}

cudaError_t queue_average(const Average& work, cudaStream_t stream) {
  Averaging one{work.scale,  work.momentum,
                work.share,  work.sources.empty() ? work.target : work.sources.front(),
                work.anchor, work.moment,
                work.target};
  switch (work.kind) {
    case program::KernelKind::drift:
      return each(work.elements, stream, Drift{one});
    case program::KernelKind::outer_step:
      return each(work.elements, stream, OuterStep{one});
    case program::KernelKind::mix: {
      if (work.sources.empty()) break;
      cudaError_t error = cudaSuccess;
      for (std::size_t i = 0; i < work.sources.size() && error == cudaSuccess; ++i) {
        one.source = work.sources[i];
        one.scale = i + 1 == work.sources.size() ? work.scale : 1;
        error = each(work.elements, stream, Mix{one});
      }
      return error;
    }
    default:
      break;
  }
  return each(work.elements, stream, Weigh{one});
}

cudaError_t queue_blend(double beta1, double scale, const float* moment, float* target,
                        std::int64_t elements, cudaStream_t stream) {
  return each(
      elements, stream,
      Blend{static_cast<float>(1 - beta1), static_cast<float>(beta1 * scale), moment, target});
}

cudaError_t queue_rescale(const float* squares, float* state, cudaStream_t stream) {
  return each(1, stream, Rescale{squares, state});
}

}  // namespace rehearse::runtime
