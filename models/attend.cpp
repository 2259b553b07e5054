// Scaled dot-product attention, causal or not, without dropout on the probabilities. Uses the fused
// kernel of each device, which keeps query, key, value, output and one number a row for backward
// (FlashAttention, Dao et al. 2022); plain products where no fused kernel takes the shape.
//
// Shapes: B samples, T tokens, n = B x T, W = heads x head_dim of this tensor-parallel rank.
#include <cmath>

#include "models/layers.h"

namespace rehearse::models {
namespace {

enum class Path : std::uint8_t { cpu, cuda_flash, cuda_efficient, plain };

Path path_of(const at::Tensor& qkv) {
  if (qkv.is_cpu()) return Path::cpu;
  const bool aligned = qkv.size(4) % 8 == 0 && qkv.size(4) <= 256;
  if (!qkv.is_cuda() || !aligned) return Path::plain;
  if (qkv.scalar_type() != at::kFloat) return Path::cuda_flash;
  // With T that 32 does not divide, the efficient kernel would pad log_sum.
  return qkv.size(1) % 32 == 0 ? Path::cuda_efficient : Path::plain;
}

/// Query, key and value as views (B, heads, T, head_dim) of qkv (B, T, 3, heads, head_dim).
struct Parts {
  at::Tensor q, k, v;
  explicit Parts(const at::Tensor& qkv)
      : q(qkv.select(2, 0).transpose(1, 2)),
        k(qkv.select(2, 1).transpose(1, 2)),
        v(qkv.select(2, 2).transpose(1, 2)) {}
};

double scale_of(const at::Tensor& qkv) { return 1 / std::sqrt(double(qkv.size(4))); }

/// f32 (B, heads, T, T): query x key, scaled and masked.
at::Tensor plain_scores(const Parts& p, double scale, bool causal) {
  at::Tensor scores = at::matmul(p.q, p.k.transpose(2, 3)).to(at::kFloat).mul_(scale);
  if (causal) {
    const at::Tensor future =
        at::ones({p.q.size(2), p.q.size(2)}, p.q.options().dtype(at::kBool)).triu(1);
    scores.masked_fill_(future, -std::numeric_limits<float>::infinity());
  }
  return scores;
}

}  // namespace

AttentionOutput attend(const at::Tensor& qkv, bool causal) {
  const Parts p(qkv);
  at::Tensor out, log_sum;  // (B, heads, T, head_dim), (B, heads, T)
  switch (path_of(qkv)) {
    case Path::cpu:
      std::tie(out, log_sum) =
          at::_scaled_dot_product_flash_attention_for_cpu(p.q, p.k, p.v, 0, causal);
      break;
    case Path::cuda_flash: {
      const auto result = at::_scaled_dot_product_flash_attention(p.q, p.k, p.v, 0, causal);
      out = std::get<0>(result), log_sum = std::get<1>(result);
      break;
    }
    case Path::cuda_efficient: {
      const auto result =
          at::_scaled_dot_product_efficient_attention(p.q, p.k, p.v, {}, true, 0, causal);
      out = std::get<0>(result), log_sum = std::get<1>(result);
      break;
    }
    case Path::plain: {
      const at::Tensor scores = plain_scores(p, scale_of(qkv), causal);
      log_sum = at::logsumexp(scores, {-1});
      out = at::matmul(scores.sub(log_sum.unsqueeze(-1)).exp_().to(p.v.scalar_type()), p.v);
      break;
    }
  }
  const std::int64_t rows = qkv.size(0) * qkv.size(1);
  return {out.transpose(1, 2).reshape({rows, qkv.size(3) * qkv.size(4)}), log_sum};
}

std::array<at::Tensor, 3> attend_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                                          const at::Tensor& out, const at::Tensor& log_sum,
                                          bool causal) {
  const Parts p(qkv);
  // (n, W) -> (B, heads, T, head_dim).
  const auto heads_first = [&](const at::Tensor& rows) {
    return rows.view({qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)}).transpose(1, 2);
  };
  const at::Tensor grad = heads_first(grad_out), result = heads_first(out);
  at::Tensor dq, dk, dv;
  switch (path_of(qkv)) {
    case Path::cpu:
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, p.q, p.k, p.v, result, log_sum, 0, causal);
      break;
    case Path::cuda_flash: {
      const at::Tensor none_drawn = at::zeros({}, qkv.options().dtype(at::kLong));
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
          grad, p.q, p.k, p.v, result, log_sum, {}, {}, qkv.size(1), qkv.size(1), 0, causal,
          none_drawn, none_drawn);
      break;
    }
    case Path::cuda_efficient: {
      const at::Tensor none_drawn = at::zeros({}, qkv.options().dtype(at::kLong));
      const auto grads = at::_scaled_dot_product_efficient_attention_backward(
          grad, p.q, p.k, p.v, {}, result, log_sum, none_drawn, none_drawn, 0,
          {true, true, true, false}, causal);
      dq = std::get<0>(grads), dk = std::get<1>(grads), dv = std::get<2>(grads);
      break;
    }
    case Path::plain: {
      const double scale = scale_of(qkv);
      const at::Tensor weights = plain_scores(p, scale, causal).sub_(log_sum.unsqueeze(-1)).exp_();
      const at::ScalarType dtype = qkv.scalar_type();
      dv = at::matmul(weights.to(dtype).transpose(2, 3), grad);
      const at::Tensor along = at::sum(grad.mul(result), {-1}, true, at::kFloat);
      const at::Tensor dscores = at::matmul(grad, p.v.transpose(2, 3))
                                     .to(at::kFloat)
                                     .sub_(along)
                                     .mul_(weights)
                                     .mul_(scale)
                                     .to(dtype);
      dq = at::matmul(dscores, p.k);
      dk = at::matmul(dscores.transpose(2, 3), p.q);
      break;
    }
  }
  // (B, heads, T, head_dim) -> (n, W).
  const auto rows = [&](const at::Tensor& x) { return x.transpose(1, 2).reshape(out.sizes()); };
  return {rows(dq), rows(dk), rows(dv)};
}

}  // namespace rehearse::models
