// RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean of x^2 + epsilon) * weight. With an offset
// (Gemma), the last factor is offset + weight. Products and sums are f32, and each sum is made by
// one thread in the order of the rows, so that the result does not depend on the number of threads.
#include <ATen/Parallel.h>

#include <array>
#include <cmath>

#include "models/by_type.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

/// Sum of term(j) for j below n, in 16 partial sums so that the loop can be vectorised.
template <class F>
float sum_of(std::int64_t n, const F& term) {
  constexpr std::int64_t lanes = 16;
  std::array<float, lanes> sums{};
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[static_cast<std::size_t>(lane)] += term(j + lane);
  float total = 0;
  for (const float sum : sums) total += sum;
  for (; j < n; ++j) total += term(j);
  return total;
}

/// x, y: (rows, hidden).
template <class T>
void forward_rows(const T* x, const float* weight, T* y, float* rstd, std::int64_t rows,
                  std::int64_t hidden, double epsilon) {
  at::parallel_for(0, rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* const in = x + r * hidden;
      const float squares = sum_of(hidden, [in](std::int64_t j) {
        return static_cast<float>(in[j]) * static_cast<float>(in[j]);
      });
      const double mean = static_cast<double>(squares) / static_cast<double>(hidden);
      rstd[r] = static_cast<float>(1 / std::sqrt(mean + epsilon));
      for (std::int64_t j = 0; j < hidden; ++j)
        y[r * hidden + j] = static_cast<T>(static_cast<float>(in[j]) * rstd[r] * weight[j]);
    }
  });
}

/// With u = grad * weight: grad_x = rstd * (u - x * rstd^2 * mean of u x).
template <class T>
void backward_rows(const T* grad, const T* x, const float* weight, const float* rstd, T* grad_x,
                   std::int64_t rows, std::int64_t hidden) {
  at::parallel_for(0, rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* const g = grad + r * hidden;
      const T* const in = x + r * hidden;
      const float along = sum_of(hidden, [=](std::int64_t j) {
        return static_cast<float>(g[j]) * weight[j] * static_cast<float>(in[j]);
      });
      const float share = along / static_cast<float>(hidden) * rstd[r] * rstd[r];
      for (std::int64_t j = 0; j < hidden; ++j)
        grad_x[r * hidden + j] = static_cast<T>(
            rstd[r] * (static_cast<float>(g[j]) * weight[j] - static_cast<float>(in[j]) * share));
    }
  });
}

/// grad_weight = sum over the rows of grad * x * rstd. A thread sums some of the columns.
template <class T>
void weight_gradient(const T* grad, const T* x, const float* rstd, float* grad_weight,
                     std::int64_t rows, std::int64_t hidden) {
  at::parallel_for(0, hidden, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = begin; j < end; ++j)
        grad_weight[j] += static_cast<float>(grad[r * hidden + j]) *
                          static_cast<float>(x[r * hidden + j]) * rstd[r];
  });
}

at::Tensor factors_of(const NormParams& p) {
  const at::Tensor factors = p.weight.to(at::kFloat);
  return p.offset == 0 ? factors : factors.add(p.offset);
}

}  // namespace

Norm rms_forward(const at::Tensor& x, const NormParams& p, double epsilon) {
  if (!x.is_cpu()) return rms_forward_by_tensors(x, p, epsilon);
  const at::Tensor in = x.contiguous(), factors = factors_of(p);
  const std::int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  const auto f32 = in.options().dtype(at::kFloat);
  Norm norm{at::empty_like(in), at::empty({0}, f32), at::empty({x.size(0), x.size(1), 1}, f32)};
  by_type(in, [&]<class T>(T) {
    forward_rows(in.const_data_ptr<T>(), factors.const_data_ptr<float>(), norm.y.data_ptr<T>(),
                 norm.rstd.data_ptr<float>(), rows, hidden, epsilon);
  });
  return norm;
}

at::Tensor rms_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& rstd,
                        const NormParams& p, const NormParams& d, bool accumulate) {
  if (!x.is_cpu()) return rms_backward_by_tensors(grad, x, rstd, p, d, accumulate);
  const at::Tensor in = x.contiguous(), g = grad.contiguous(), factors = factors_of(p);
  const std::int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  const at::Tensor grad_x = at::empty_like(in), sum = at::zeros({hidden}, at::kFloat);
  by_type(in, [&]<class T>(T) {
    const T* const values = in.const_data_ptr<T>();
    const T* const grads = g.const_data_ptr<T>();
    const auto* const deviations = rstd.const_data_ptr<float>();
    backward_rows(grads, values, factors.const_data_ptr<float>(), deviations, grad_x.data_ptr<T>(),
                  rows, hidden);
    weight_gradient(grads, values, deviations, sum.data_ptr<float>(), rows, hidden);
  });
  store(d.weight, sum, accumulate);
  return grad_x;
}

Norm rms_forward_by_tensors(const at::Tensor& x, const NormParams& p, double epsilon) {
  const at::Tensor in = x.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(in.square().mean({-1}, true).add_(epsilon));
  return {in.mul(rstd).mul_(factors_of(p)).to(x.scalar_type()), at::empty({0}, rstd.options()),
          rstd};
}

at::Tensor rms_backward_by_tensors(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& rstd, const NormParams& p, const NormParams& d,
                                   bool accumulate) {
  const at::Tensor g = grad.to(at::kFloat), unit = x.to(at::kFloat).mul(rstd);
  store(d.weight, g.mul(unit).sum(at::IntArrayRef{0, 1}), accumulate);
  const at::Tensor u = g.mul(factors_of(p));
  const at::Tensor along = u.mul(unit).mean({-1}, true);
  return u.sub(unit.mul(along)).mul_(rstd).to(x.scalar_type());
}

}  // namespace rehearse::models
