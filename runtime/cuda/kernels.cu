#include "runtime/cuda/each.h"
#include "runtime/cuda/kernels.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t block = squares_block, lanes = squares_lanes;

struct Update {
  CudaInterval x;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    const StepScalars scalars = *x.scalars;
    if (scalars.skip) {
      if (x.fresh) store(x.param, x.param_type, i, x.master[i]);
      return;
    }
    const float grad = load(x.grad, x.grad_type, i);
    float weight = x.master != nullptr ? x.master[i] : load(x.param, x.param_type, i);
    float moment1 = load(x.moment1, x.moment_type, i);
    if (x.frozen) {
      frozen_adamw(x.factors, scalars, grad, weight, moment1, load(x.moment2, x.moment_type, i));
    } else if (x.adamw) {
      float moment2 = load(x.moment2, x.moment_type, i);
      adamw(x.factors, scalars, grad, weight, moment1, moment2);
      store(x.moment2, x.moment_type, i, moment2);
    } else {
      sgd(x.factors, scalars, grad, weight, moment1);
    }
    store(x.moment1, x.moment_type, i, moment1);
    if (x.master != nullptr) x.master[i] = weight;
    store(x.param, x.param_type, i, weight);
  }
};

/// One lane of a block: of its elements lane, lane + lanes ... those in whole rows.
struct LaneSquares {
  const void* values;
  CudaNumber type;
  std::int64_t elements;
  float* sums;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t begin = at / lanes * block, lane = at % lanes;
    const std::int64_t count = elements - begin < block ? elements - begin : block;
    float sum = 0;
    for (std::int64_t i = 0; i + lanes <= count; i += lanes) {
      const float value = load(values, type, begin + i + lane);
      sum += value * value;
    }
    sums[at] = sum;
  }
};

/// The elements of a block that fill no row, then its lanes.
struct BlockSquares {
  const void* values;
  CudaNumber type;
  std::int64_t elements;
  const float* lane_sums;
  double* sums;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t begin = at * block;
    const std::int64_t count = elements - begin < block ? elements - begin : block;
    double sum = 0;
    for (std::int64_t i = count / lanes * lanes; i < count; ++i) {
      const double value = load(values, type, begin + i);
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
  CudaObservation x;
  std::uint32_t* too_large;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    if (x.state[0] < 0 || !x.gradients.finite()) return;
    const float value = 1 / x.gradients.scale() * load(x.values, x.type, i * x.stride);
    if (!(std::fabs(value) < too_large_to_observe)) *too_large = 1;
    float* const mean = x.state + 1 + i;
    welford(value, x.state[0] + 1, *mean, mean[x.observed]);
  }
};

/// After all entries, since these read the number of observations.
struct CountObservation {
  CudaObservation x;
  const std::uint32_t* too_large;
  REHEARSE_BOTH void operator()(std::int64_t) const {
    if (x.state[0] < 0 || !x.gradients.finite()) return;
    const float count = x.state[0] + 1;
    x.state[0] = *too_large != 0 ? -count : count;
  }
};

struct Weigh : CudaAverage {
  REHEARSE_BOTH void operator()(std::int64_t i) const { target[i] = scale * source[i]; }
};

struct Drift : CudaAverage {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    target[i] = drifted(share == nullptr ? scale : *share * scale, anchor[i], source[i]);
  }
};

struct OuterStep : CudaAverage {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    if (share == nullptr)
      nesterov(scale, momentum, source[i], anchor[i], moment[i]);
    else
      anchor[i] -= rate_of_share(scale, *share) * source[i];
    target[i] = anchor[i];
  }
};

struct Mix : CudaAverage {
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    target[i] = scale * (target[i] + source[i]);
  }
};

struct Rescale {
  const float* squares;
  float* state;
  REHEARSE_BOTH void operator()(std::int64_t) const { runtime::rescale(squares, state); }
};

}  // namespace

cudaError_t queue_update(const CudaInterval& interval, std::int64_t elements, cudaStream_t stream) {
  return each(elements, stream, Update{interval});
}

cudaError_t queue_squares(const void* values, CudaNumber type, std::int64_t elements, bool first,
                          float* lane_sums, double* block_sums, double* total,
                          cudaStream_t stream) {
  const std::int64_t blocks = squares_blocks(elements);
  cudaError_t error = each(blocks * lanes, stream, LaneSquares{values, type, elements, lane_sums});
  if (error == cudaSuccess)
    error = each(blocks, stream, BlockSquares{values, type, elements, lane_sums, block_sums});
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

cudaError_t queue_observe(const CudaObservation& observation, std::uint32_t* too_large,
                          cudaStream_t stream) {
  cudaError_t error = cudaMemsetAsync(too_large, 0, sizeof *too_large, stream);
  if (error == cudaSuccess)
    error = each(observation.observed, stream, Observe{observation, too_large});
  if (error == cudaSuccess) error = each(1, stream, CountObservation{observation, too_large});
  return error;
}

cudaError_t queue_weigh(const CudaAverage& work, std::int64_t elements, cudaStream_t stream) {
  return each(elements, stream, Weigh{work});
}

cudaError_t queue_drift(const CudaAverage& work, std::int64_t elements, cudaStream_t stream) {
  return each(elements, stream, Drift{work});
}

cudaError_t queue_outer_step(const CudaAverage& work, std::int64_t elements, cudaStream_t stream) {
  return each(elements, stream, OuterStep{work});
}

cudaError_t queue_mix(const CudaAverage& work, std::int64_t elements, cudaStream_t stream) {
  return each(elements, stream, Mix{work});
}

cudaError_t queue_rescale(const float* squares, float* state, cudaStream_t stream) {
  return each(1, stream, Rescale{squares, state});
}

}  // namespace rehearse::runtime
