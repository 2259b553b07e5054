// Scaled dot-product attention, causal or not, without dropout on the probabilities. Uses the fused
// kernel of each device, which keeps query, key, value, output and one number a row for backward
// (FlashAttention, Dao et al. 2022); plain products where no fused kernel takes the shape.
//
// Grouped queries (Ainslie et al. 2023): with G query heads for each key-value head, the kernel
// runs G times, over one query head of each group, so that no key or value is copied.
//
// Shapes: B samples, T tokens, n = B x T, W = heads x head_dim of this tensor-parallel rank.
#include "models/layers.h"

namespace rehearse::models {
namespace {

enum class Path : std::uint8_t { cpu, cuda_flash, cuda_efficient, plain };

Path path_of(const at::Tensor& q, const Reach& reach) {
  if (q.is_cpu()) return Path::cpu;
  const bool aligned = q.size(3) % 8 == 0 && q.size(3) <= 256;
  if (!q.is_cuda() || !aligned || reach.window > 0) return Path::plain;
  if (q.scalar_type() != at::kFloat) return Path::cuda_flash;
  // With T that 32 does not divide, the efficient kernel would pad log_sum.
  return q.size(1) % 32 == 0 ? Path::cuda_efficient : Path::plain;
}

/// What one call of a kernel takes: as many query heads as key-value heads, as views (B, heads, T,
/// head_dim). Call c has query head c of each group.
Queries heads_first(const Queries& x, std::int64_t call) {
  const std::int64_t groups = x.q.size(2) / x.k.size(2);
  return {x.q.unflatten(2, {-1, groups}).select(3, call).transpose(1, 2), x.k.transpose(1, 2),
          x.v.transpose(1, 2)};
}

/// (T, T), true where a token does not attend.
at::Tensor hidden_from(const at::Tensor& q, const Reach& reach) {
  const at::Tensor all = at::ones({q.size(2), q.size(2)}, q.options().dtype(at::kBool));
  at::Tensor hidden = all.triu(1);
  if (reach.window > 0) hidden.logical_or_(all.tril(-reach.window));
  return hidden;
}

/// (T, T) of 0 and minus infinity, for the CPU's kernel; nothing where it needs none.
std::optional<at::Tensor> window_mask(const at::Tensor& q, const Reach& reach) {
  if (reach.window == 0 || !q.is_cpu()) return std::nullopt;
  return at::zeros({q.size(2), q.size(2)}, q.options())
      .masked_fill_(hidden_from(q, reach), -std::numeric_limits<float>::infinity());
}

/// f32 (B, heads, T, T): query x key, scaled and masked.
at::Tensor plain_scores(const Queries& p, const Reach& reach) {
  at::Tensor scores = at::matmul(p.q, p.k.transpose(2, 3)).to(at::kFloat).mul_(reach.scale);
  if (reach.causal)
    scores.masked_fill_(hidden_from(p.q, reach), -std::numeric_limits<float>::infinity());
  return scores;
}

/// One call: output (B, heads, T, head_dim) and log_sum (B, heads, T).
std::tuple<at::Tensor, at::Tensor> attend_once(const Queries& p, Path path, const Reach& reach,
                                               const std::optional<at::Tensor>& mask) {
  switch (path) {
    case Path::cpu:
      return at::_scaled_dot_product_flash_attention_for_cpu(
          p.q, p.k, p.v, 0, reach.causal && !mask.has_value(), mask, reach.scale);
    case Path::cuda_flash: {
      const auto result = at::_scaled_dot_product_flash_attention(p.q, p.k, p.v, 0, reach.causal,
                                                                  false, reach.scale);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case Path::cuda_efficient: {
      const auto result = at::_scaled_dot_product_efficient_attention(p.q, p.k, p.v, {}, true, 0,
                                                                      reach.causal, reach.scale);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case Path::plain:
      break;
  }
  const at::Tensor scores = plain_scores(p, reach);
  const at::Tensor log_sum = at::logsumexp(scores, {-1});
  return {at::matmul(scores.sub(log_sum.unsqueeze(-1)).exp_().to(p.v.scalar_type()), p.v), log_sum};
}

/// The gradients of query, key and value of one call, each (B, heads, T, head_dim).
std::array<at::Tensor, 3> attend_once_backward(const at::Tensor& grad, const Queries& p,
                                               const at::Tensor& result, const at::Tensor& log_sum,
                                               Path path, const Reach& reach,
                                               const std::optional<at::Tensor>& mask) {
  at::Tensor dq, dk, dv;
  switch (path) {
    case Path::cpu:
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, p.q, p.k, p.v, result, log_sum, 0, reach.causal && !mask.has_value(), mask,
          reach.scale);
      break;
    case Path::cuda_flash: {
      const at::Tensor none_drawn = at::zeros({}, p.q.options().dtype(at::kLong));
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
          grad, p.q, p.k, p.v, result, log_sum, {}, {}, p.q.size(2), p.k.size(2), 0, reach.causal,
          none_drawn, none_drawn, reach.scale);
      break;
    }
    case Path::cuda_efficient: {
      const at::Tensor none_drawn = at::zeros({}, p.q.options().dtype(at::kLong));
      const auto grads = at::_scaled_dot_product_efficient_attention_backward(
          grad, p.q, p.k, p.v, {}, result, log_sum, none_drawn, none_drawn, 0,
          {true, true, true, false}, reach.causal, reach.scale);
      dq = std::get<0>(grads), dk = std::get<1>(grads), dv = std::get<2>(grads);
      break;
    }
    case Path::plain: {
      const at::Tensor weights = plain_scores(p, reach).sub_(log_sum.unsqueeze(-1)).exp_();
      const at::ScalarType dtype = p.q.scalar_type();
      dv = at::matmul(weights.to(dtype).transpose(2, 3), grad);
      const at::Tensor along = at::sum(grad.mul(result), {-1}, true, at::kFloat);
      const at::Tensor dscores = at::matmul(grad, p.v.transpose(2, 3))
                                     .to(at::kFloat)
                                     .sub_(along)
                                     .mul_(weights)
                                     .mul_(reach.scale)
                                     .to(dtype);
      dq = at::matmul(dscores, p.k);
      dk = at::matmul(dscores.transpose(2, 3), p.q);
      break;
    }
  }
  return {dq, dk, dv};
}

/// (B, heads, T, head_dim) -> (n, heads x head_dim).
at::Tensor to_rows(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1) * x.size(3)});
}

}  // namespace

AttentionOutput attend(const Queries& x, const Reach& reach) {
  if (reach.cap > 0) return attend_capped(x, reach);
  const Path path = path_of(x.q, reach);
  const std::int64_t groups = x.q.size(2) / x.k.size(2);
  const std::optional<at::Tensor> mask = window_mask(heads_first(x, 0).q, reach);
  if (groups == 1) {
    const auto [out, log_sum] = attend_once(heads_first(x, 0), path, reach, mask);
    return {to_rows(out), log_sum};
  }
  const at::Tensor out = at::empty(x.q.sizes(), x.q.options());
  const at::Tensor log_sum =
      at::empty({x.q.size(0), x.q.size(2), x.q.size(1)}, x.q.options().dtype(at::kFloat));
  for (std::int64_t call = 0; call < groups; ++call) {
    const auto [part, part_log_sum] = attend_once(heads_first(x, call), path, reach, mask);
    out.unflatten(2, {-1, groups}).select(3, call).copy_(part.transpose(1, 2));
    log_sum.unflatten(1, {-1, groups}).select(2, call).copy_(part_log_sum);
  }
  return {out.view({-1, out.size(2) * out.size(3)}), log_sum};
}

std::array<at::Tensor, 3> attend_backward(const at::Tensor& grad_out, const Queries& x,
                                          const at::Tensor& out, const at::Tensor& log_sum,
                                          const Reach& reach) {
  if (reach.cap > 0) return attend_capped_backward(grad_out, x, out, log_sum, reach);
  const Path path = path_of(x.q, reach);
  const std::int64_t groups = x.q.size(2) / x.k.size(2);
  const std::optional<at::Tensor> mask = window_mask(heads_first(x, 0).q, reach);
  // (n, W) -> (B, heads, T, head_dim) of one call.
  const auto of_call = [&](const at::Tensor& rows, std::int64_t call) {
    return rows.view(x.q.sizes()).unflatten(2, {-1, groups}).select(3, call).transpose(1, 2);
  };
  if (groups == 1) {
    const auto [dq, dk, dv] = attend_once_backward(of_call(grad_out, 0), heads_first(x, 0),
                                                   of_call(out, 0), log_sum, path, reach, mask);
    return {to_rows(dq), to_rows(dk), to_rows(dv)};
  }
  const at::Tensor grad_q = at::empty(x.q.sizes(), x.q.options());
  at::Tensor grad_k, grad_v;  // sums over the calls
  for (std::int64_t call = 0; call < groups; ++call) {
    const auto [dq, dk, dv] = attend_once_backward(
        of_call(grad_out, call), heads_first(x, call), of_call(out, call),
        log_sum.unflatten(1, {-1, groups}).select(2, call).contiguous(), path, reach, mask);
    grad_q.unflatten(2, {-1, groups}).select(3, call).copy_(dq.transpose(1, 2));
    if (call == 0) {
      grad_k = dk, grad_v = dv;
    } else {
      grad_k.add_(dk), grad_v.add_(dv);
    }
  }
  return {grad_q.view(out.sizes()), to_rows(grad_k), to_rows(grad_v)};
}

}  // namespace rehearse::models
