// Attention whose scores are capped, s -> cap tanh(s / cap) (Gemma 2), which LibTorch's fused
// kernels do not compute. It works on the queries of a number of tokens at a time
// (model::capped_queries) and keeps one number a row for backward, as FlashAttention does; so the
// scores of all pairs are never in memory. With P = softmax of the capped scores c, t = tanh(s /
// cap) and the sum over a row of dP P in the form of FlashAttention:
//
//   ds = P (dP - sum of dout out) (1 - t^2)
//
// Shapes: T tokens with queries, S with keys, g queries for each of K keys' heads, d = head_dim;
// one sample at a time.
#include <algorithm>
#include <array>
#include <limits>

#include "models/layers.h"

namespace rehearse::models {
namespace {

/// Some tokens of a sample's queries, and the keys that they may attend to: [0, keys).
struct Part {
  std::int64_t sample = 0, begin = 0, count = 0, keys = 0;
};

template <class F>
void each_part(const Queries& x, const Reach& reach, const F& work) {
  const std::int64_t tokens = x.q.size(1);
  for (std::int64_t sample = 0; sample < x.q.size(0); ++sample)
    for (std::int64_t begin = 0; begin < tokens; begin += model::capped_queries) {
      const std::int64_t count = std::min<std::int64_t>(model::capped_queries, tokens - begin);
      work(Part{sample, begin, count, reach.causal ? begin + count : x.k.size(1)});
    }
}

/// Of (B, T, heads, d): the part's heads by the key's head, (K, g count, d).
at::Tensor queries_of(const at::Tensor& x, const Part& part, std::int64_t groups) {
  return x.select(0, part.sample)
      .narrow(0, part.begin, part.count)
      .unflatten(1, {-1, groups})
      .permute({1, 2, 0, 3})
      .reshape({-1, groups * part.count, x.size(3)});
}
/// The inverse: writes (K, g count, d) into (B, T, heads, d).
void put_queries(const at::Tensor& x, const Part& part, std::int64_t groups,
                 const at::Tensor& values) {
  x.select(0, part.sample)
      .narrow(0, part.begin, part.count)
      .unflatten(1, {-1, groups})
      .permute({1, 2, 0, 3})
      .copy_(values.view({-1, groups, part.count, x.size(3)}));
}
/// Of (B, S, K, d): (K, keys, d), a view.
at::Tensor keys_of(const at::Tensor& x, const Part& part) {
  return x.select(0, part.sample).narrow(0, 0, part.keys).transpose(0, 1);
}

/// f32 (K, g count, keys): tanh(s / cap).
at::Tensor tanh_of(const at::Tensor& q, const at::Tensor& k, const Reach& reach) {
  return at::bmm(q, k.transpose(1, 2)).to(at::kFloat).mul_(reach.scale / reach.cap).tanh_();
}

/// Sets scores that the part's queries do not see to minus infinity.
void hide(const at::Tensor& scores, const Part& part, const Reach& reach) {
  if (!reach.causal) return;
  const at::Tensor all = at::ones({part.count, part.keys}, scores.options().dtype(at::kBool));
  at::Tensor hidden = all.triu(part.begin + 1);
  if (reach.window > 0) hidden.logical_or_(all.tril(part.begin - reach.window));
  scores.view({scores.size(0), -1, part.count, part.keys})
      .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
}

/// (B, T, heads, d) -> (n, heads x d).
at::Tensor to_rows(const at::Tensor& x) { return x.view({-1, x.size(2) * x.size(3)}); }

}  // namespace

AttentionOutput attend_capped(const Queries& x, const Reach& reach) {
  const std::int64_t groups = x.q.size(2) / x.k.size(2);
  const at::Tensor out = at::empty(x.q.sizes(), x.q.options());
  const at::Tensor log_sum =
      at::empty({x.q.size(0), x.q.size(2), x.q.size(1)}, x.q.options().dtype(at::kFloat));
  each_part(x, reach, [&](const Part& part) {
    at::Tensor scores = tanh_of(queries_of(x.q, part, groups), keys_of(x.k, part), reach);
    scores.mul_(reach.cap);
    hide(scores, part, reach);
    const at::Tensor most = scores.amax({2}, true);
    const at::Tensor sum = scores.sub_(most).exp_().sum({2}, true);
    scores = scores.div_(sum).to(x.v.scalar_type());
    put_queries(out, part, groups, at::bmm(scores, keys_of(x.v, part)));
    log_sum.select(0, part.sample)
        .narrow(1, part.begin, part.count)
        .copy_(sum.log().add_(most).view({-1, part.count}));
  });
  return {to_rows(out), log_sum};
}

std::array<at::Tensor, 3> attend_capped_backward(const at::Tensor& grad_out, const Queries& x,
                                                 const at::Tensor& out, const at::Tensor& log_sum,
                                                 const Reach& reach) {
  const std::int64_t groups = x.q.size(2) / x.k.size(2);
  const at::ScalarType dtype = x.q.scalar_type();
  const at::Tensor grads = grad_out.view(x.q.sizes()), results = out.view(x.q.sizes());
  const at::Tensor grad_q = at::empty(x.q.sizes(), x.q.options());
  // Sums over the parts.
  const at::Tensor grad_k = at::zeros(x.k.sizes(), x.k.options().dtype(at::kFloat)),
                   grad_v = at::zeros(x.k.sizes(), x.k.options().dtype(at::kFloat));
  each_part(x, reach, [&](const Part& part) {
    const at::Tensor q = queries_of(x.q, part, groups), grad = queries_of(grads, part, groups);
    const at::Tensor k = keys_of(x.k, part), v = keys_of(x.v, part);
    at::Tensor tanh = tanh_of(q, k, reach);
    at::Tensor p = tanh.mul(reach.cap);
    hide(p, part, reach);
    p.sub_(log_sum.select(0, part.sample)
               .narrow(1, part.begin, part.count)
               .reshape({p.size(0), p.size(1), 1}))
        .exp_();
    keys_of(grad_v, part).add_(at::bmm(p.to(dtype).transpose(1, 2), grad));
    const at::Tensor along =
        at::sum(queries_of(results, part, groups).mul(grad), {2}, true, at::kFloat);
    at::Tensor ds = at::bmm(grad, v.transpose(1, 2)).to(at::kFloat).sub_(along).mul_(p);
    p.reset();
    ds.mul_(tanh.square_().neg_().add_(1)).mul_(reach.scale);
    tanh.reset();
    ds = ds.to(dtype);
    put_queries(grad_q, part, groups, at::bmm(ds, k));
    keys_of(grad_k, part).add_(at::bmm(ds.transpose(1, 2), q));
  });
  return {to_rows(grad_q), to_rows(grad_k.to(dtype)), to_rows(grad_v.to(dtype))};
}

}  // namespace rehearse::models
