// Cross-entropy over a vocabulary shard, in place of the logits. Exponentials are computed once,
// and nothing of the logits' size is allocated. For a row z of shard k with target t:
//
//   forward:  m_k = max z            e = exp(z - m_k) overwrites z          s_k = sum of e
//             reports m_k, s_k, z[t]
//   backward: M = max over k of m_k  S = sum over k of exp(m_k - M) s_k
//             e <- scale (e exp(m_k - M) / S - [t]), the gradient of the logits
//
// With a cap c, z is c tanh(y / c) of the logits y, and the gradient of y has a factor 1 - (z /
// c)^2. Backward finds z as m_k + log e, and that of the target in the statistics; where e is
// rounded to 0, so is the gradient.
//
// On the CPU one parallel region works row by row, so that a row stays in cache. Other devices do
// the same with tensor operations on a number of rows at a time.
#include <ATen/Parallel.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/base/numbers/vectorise.h"
#include "models/by_type.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

// Partial results per row. A fixed number, so that sums do not depend on the machine's vectors.
constexpr std::int64_t lanes = 16;

/// exp for x <= 0, relative error below 2e-7: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (expf
/// of the Cephes library). exp of NaN is NaN.
inline float exp_negative(float x) {
  x = x < -87.0F ? -87.0F : x;
  const float n = (x * 1.44269504088896341F + 12582912.0F) - 12582912.0F;  // round to nearest
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

REHEARSE_CLONES float row_maximum(const float* x, std::int64_t n) {
  std::array<float, lanes> m;
  m.fill(std::numeric_limits<float>::lowest());
  const std::int64_t body = n / lanes * lanes;
  for (std::int64_t j = 0; j < body; j += lanes) {
    for (std::int64_t l = 0; l < lanes; ++l) m[l] = x[j + l] > m[l] ? x[j + l] : m[l];
  }
  for (std::int64_t j = body; j < n; ++j) m[0] = x[j] > m[0] ? x[j] : m[0];
  float result = m[0];
  for (const float v : m) result = v > result ? v : result;
  return result;
}

REHEARSE_CLONES void row_exponentials(float* x, std::int64_t n, float maximum) {
  for (std::int64_t j = 0; j < n; ++j) x[j] = exp_negative(x[j] - maximum);
}

REHEARSE_CLONES float row_sum(const float* x, std::int64_t n) {
  std::array<float, lanes> s{};
  const std::int64_t body = n / lanes * lanes;
  for (std::int64_t j = 0; j < body; j += lanes) {
    for (std::int64_t l = 0; l < lanes; ++l) s[l] += x[j + l];
  }
  for (std::int64_t j = body; j < n; ++j) s[0] += x[j];
  float result = 0;
  for (const float v : s) result += v;
  return result;
}

REHEARSE_CLONES void row_scale(float* x, std::int64_t n, float factor) {
  for (std::int64_t j = 0; j < n; ++j) x[j] *= factor;
}

void row_caps(float* x, std::int64_t n, float cap) {
  for (std::int64_t j = 0; j < n; ++j) x[j] = cap * std::tanh(x[j] / cap);
}

/// Multiplies exponentials by the slopes of the cap.
void row_slopes(float* x, std::int64_t n, float maximum, float cap) {
  for (std::int64_t j = 0; j < n; ++j) {
    const float t = x[j] > 0 ? (maximum + std::log(x[j])) / cap : 0;
    x[j] *= 1 - t * t;
  }
}

/// Calls work(row number, f32 row) for every row, in parallel; rows of 16-bit tensors are converted
/// and written back.
template <class T, class Work>
void each_row(const at::Tensor& values, const Work& work) {
  const std::int64_t width = values.size(1);
  T* const data = values.data_ptr<T>();
  at::parallel_for(0, values.size(0), 4, [&](std::int64_t begin, std::int64_t end) {
    float* const buffer = std::is_same_v<T, float> ? nullptr : row_room(width);
    for (std::int64_t i = begin; i < end; ++i) {
      T* const row = data + i * width;
      if constexpr (std::is_same_v<T, float>) {
        work(i, row);
      } else {
        for (std::int64_t j = 0; j < width; ++j) buffer[j] = static_cast<float>(row[j]);
        work(i, buffer);
        for (std::int64_t j = 0; j < width; ++j) row[j] = static_cast<T>(buffer[j]);
      }
    }
  });
}
template <class Work>
void each_row(const at::Tensor& values, const Work& work) {
  by_type(values, [&]<class T>(T) { each_row<T>(values, work); });
}

/// The factor of the gradient, f64 of no dimension, on the device of `scale`.
at::Tensor product_of(double weight, const at::Tensor& scale) {
  const at::Tensor by = at::scalar_tensor(weight, at::kDouble);
  return scale.defined() ? scale.squeeze().to(at::kDouble).mul_(by) : by;
}

/// (n), the factor of each row that turns this shard's exponentials into probabilities times
/// `scale`; 0 for rows that are not counted. stats: (tp, n, 3), labels: (n).
at::Tensor factors(const at::Tensor& stats, const at::Tensor& labels, int shard,
                   const at::Tensor& scale) {
  const at::Tensor maxima = stats.select(2, 0);
  const at::Tensor maximum = std::get<0>(maxima.max(0));
  const at::Tensor sum = maxima.sub(maximum).exp_().mul_(stats.select(2, 1)).sum(0);
  return maxima.select(0, shard).sub(maximum).exp_().div_(sum).mul_(scale).masked_fill_(
      labels.lt(0), 0);
}

/// Logits that devices other than the CPU work on at a time.
constexpr std::int64_t chunk_elements = 1 << 26;

}  // namespace

at::Tensor exponentiate(const at::Tensor& logits, const at::Tensor& labels, Shard shard) {
  if (!logits.is_cpu()) return exponentiate_by_tensors(logits, labels, shard, chunk_elements);
  const at::Tensor stats = at::empty({logits.size(0), 3}, at::kFloat);
  const at::Tensor flat = labels.reshape({-1}).contiguous();
  const std::int64_t* const label = flat.const_data_ptr<std::int64_t>();
  float* const out = stats.data_ptr<float>();
  each_row(logits, [&](std::int64_t i, float* row) {
    const std::int64_t target = label[i] - shard.begin;
    const bool here = label[i] >= 0 && target >= 0 && target < shard.valid;
    if (shard.cap > 0) row_caps(row, shard.valid, static_cast<float>(shard.cap));
    out[3 * i + 2] = here ? row[target] : 0.0F;
    out[3 * i] = row_maximum(row, shard.valid);
    row_exponentials(row, shard.valid, out[3 * i]);
    out[3 * i + 1] = row_sum(row, shard.valid);
    std::fill(row + shard.valid, row + logits.size(1), 0.0F);
  });
  return stats;
}

void to_gradient(const at::Tensor& values, const at::Tensor& stats, const at::Tensor& labels,
                 Shard shard, double weight, const at::Tensor& loss_scale) {
  if (!values.is_cpu()) {
    return to_gradient_by_tensors(values, stats, labels, shard, weight, loss_scale, chunk_elements);
  }
  const at::Tensor scale = product_of(weight, loss_scale);
  const auto taken = static_cast<float>(*scale.const_data_ptr<double>());
  const at::Tensor flat = labels.reshape({-1}).contiguous();
  const std::int64_t* const label = flat.const_data_ptr<std::int64_t>();
  const at::Tensor factor = factors(stats, flat, shard.index, scale).contiguous();
  const float* const by = factor.const_data_ptr<float>();
  const at::Tensor own = stats.select(0, shard.index).contiguous();
  const float* const reported = own.const_data_ptr<float>();
  const auto cap = static_cast<float>(shard.cap);
  each_row(values, [&](std::int64_t i, float* row) {
    const std::int64_t target = label[i] - shard.begin;
    const bool here = label[i] >= 0 && target >= 0 && target < shard.valid;
    const float exponential = here ? row[target] : 0;
    if (cap > 0) row_slopes(row, shard.valid, reported[3 * i], cap);
    if (here) row[target] = exponential;
    row_scale(row, values.size(1), by[i]);
    if (!here) return;
    row[target] -= taken;
    if (cap == 0) return;
    const float t = reported[3 * i + 2] / cap;
    row[target] *= 1 - t * t;
  });
}

namespace {

/// For each row: the index of its target in this shard, and whether the target is in this shard and
/// counted, as f32 1 or 0. Where it is 0, the index is 0.
struct Targets {
  at::Tensor index, here;
  Targets(const at::Tensor& labels, Shard shard) : index(labels.reshape({-1}).sub(shard.begin)) {
    const at::Tensor inside =
        index.ge(0).logical_and_(index.lt(shard.valid)).logical_and_(labels.reshape({-1}).ge(0));
    index.masked_fill_(inside.logical_not(), 0);
    here = inside.to(at::kFloat);
  }
};

}  // namespace

at::Tensor exponentiate_by_tensors(const at::Tensor& logits, const at::Tensor& labels, Shard shard,
                                   std::int64_t elements) {
  const std::int64_t n = logits.size(0), width = logits.size(1);
  const std::int64_t step = std::max<std::int64_t>(1, elements / width);
  const at::Tensor stats = at::empty({n, 3}, logits.options().dtype(at::kFloat));
  const Targets targets(labels, shard);
  at::Tensor target_logits =
      at::gather(logits, 1, targets.index.unsqueeze(1)).squeeze(1).to(at::kFloat);
  if (shard.cap > 0) target_logits = target_logits.div(shard.cap).tanh_().mul_(shard.cap);
  stats.select(1, 2).copy_(target_logits.mul_(targets.here));
  if (shard.valid < width) logits.narrow(1, shard.valid, width - shard.valid).zero_();
  if (shard.valid == 0) {
    stats.select(1, 0).fill_(std::numeric_limits<float>::lowest());
    stats.select(1, 1).zero_();
    return stats;
  }
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const std::int64_t count = std::min(step, n - begin);
    const at::Tensor part = logits.narrow(0, begin, count).narrow(1, 0, shard.valid);
    const at::Tensor x = part.to(at::kFloat);  // shares memory with `part` if that is f32
    if (shard.cap > 0) x.div_(shard.cap).tanh_().mul_(shard.cap);
    const at::Tensor maximum = x.amax({1}, true);
    x.sub_(maximum).exp_();
    const at::Tensor out = stats.narrow(0, begin, count);
    out.narrow(1, 0, 1).copy_(maximum);
    out.select(1, 1).copy_(x.sum({1}));
    if (!x.is_same(part)) part.copy_(x);
  }
  return stats;
}

void to_gradient_by_tensors(const at::Tensor& values, const at::Tensor& stats,
                            const at::Tensor& labels, Shard shard, double weight,
                            const at::Tensor& loss_scale, std::int64_t elements) {
  const std::int64_t n = values.size(0), width = values.size(1);
  const std::int64_t step = std::max<std::int64_t>(1, elements / width);
  const at::Tensor flat = labels.reshape({-1});
  const at::Tensor scale = product_of(weight, loss_scale);
  const at::Tensor factor = factors(stats, flat, shard.index, scale).unsqueeze(1);
  const at::Tensor taken = scale.neg();
  const Targets targets(labels, shard);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const std::int64_t count = std::min(step, n - begin);
    const at::Tensor part = values.narrow(0, begin, count);
    const at::Tensor x = part.to(at::kFloat);
    const at::Tensor index = targets.index.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor here = targets.here.narrow(0, begin, count).unsqueeze(1);
    at::Tensor slopes;
    if (shard.cap > 0) {
      const at::Tensor reported = stats.select(0, shard.index).narrow(0, begin, count);
      slopes = x.log().add_(reported.narrow(1, 0, 1)).div_(shard.cap).square_().neg_().add_(1);
      slopes.masked_fill_(x.le(0), 1);
      const at::Tensor at_target = reported.narrow(1, 2, 1).div(shard.cap).square_().neg_().add_(1);
      const at::Tensor others = slopes.gather(1, index);
      slopes.scatter_(1, index, at::where(here.gt(0), at_target, others));
    }
    x.mul_(factor.narrow(0, begin, count));
    x.scatter_add_(1, index, here.mul(taken));
    if (slopes.defined()) x.mul_(slopes);
    if (!x.is_same(part)) part.copy_(x);
  }
}

}  // namespace rehearse::models
