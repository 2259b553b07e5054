// Feed-forward block of experts (Shazeer et al. 2017; Fedus et al. 2022; Jiang et al. 2024): norm,
// a router that chooses k of E experts for each token, SwiGLU or GeGLU in each expert, and their
// sum weighted by the router's probabilities, plus the residual.
//
//   y -- router -- softmax -- k largest p, divided by their sum (norm_topk)
//   |                              |
//   +-- rows of expert e -- f_e -- times p -- added to the rows of its tokens
//
// Shapes: n = B x T rows, E experts, k experts of a token. Pairs of a row and one of its experts,
// n k, are ordered by expert; those of an expert are in the order of the rows. An expert gets a row
// at most once, so rows can be added to in any order of its pairs with the same bits.
//
// Tensor ranks have a part of each expert's width and the whole router. As the outputs of experts
// are partial sums over tp, so are the gradients of their weights, and with them those of the
// router. Only the first tensor rank adds the gradient of the loss that balances experts.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>
#include <vector>

#include "models/layers.h"

namespace rehearse::models {
namespace {

/// Which rows each expert gets, and with what weight.
struct Routes {
  at::Tensor rows = {};                  // i64 (n k), by expert
  at::Tensor pairs = {};                 // i64 (n k): their places in (n, k)
  at::Tensor weights = {};               // f32 (n k)
  at::Tensor counts = {};                // i64 (E), on the device
  std::vector<std::int64_t> begin = {};  // E + 1: the first pair of each expert
};

class Experts final : public Normed {
 public:
  explicit Experts(const LocalShape& shape) : Normed(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& /*batch*/, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    Norm norm = normed(input, p.norm);
    const at::Tensor y = rows(norm.y);
    at::Tensor probabilities = at::softmax(product(y, p.router.t()), -1, at::kFloat);
    at::Tensor chosen = std::get<1>(probabilities.topk(z_.experts_per_token, -1));
    const Routes routes = routes_of(probabilities, chosen);
    const at::Tensor inner = at::empty({chosen.numel(), 2 * z_.ffn}, input.options());
    for_each(routes, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      product_into(inner.narrow(0, begin, count), tokens_of(y, routes, begin, count),
                   p.in_weight(expert).t(), false);
    });
    if (saved == nullptr) probabilities.reset(), chosen.reset();
    release(norm);
    const at::Tensor active = gated(inner, z_.activation);
    at::Tensor out = z_.first() ? input.clone() : at::zeros_like(input);
    for_each(routes, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      at::Tensor returned = product(active.narrow(0, begin, count), p.out_weight(expert).t());
      returned.mul_(routes.weights.narrow(0, begin, count).unsqueeze(1));
      rows(out).index_add_(0, routes.rows.narrow(0, begin, count), returned);
    });
    if (saved != nullptr)
      saved->tensors = {kept(norm), norm.mean, norm.rstd, inner, active, probabilities, chosen};
    return out;
  }

  at::Tensor backward(program::Pass pass, std::span<const at::Tensor> params,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const Batch& batch, std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params), d(z_, grads);
    const Halves half(pass);
    Saved::Tensors s = std::exchange(saved.tensors, {});
    // The first half replaces `inner` by its gradient.
    const at::Tensor &kept_y = s[0], &mean = s[1], &rstd = s[2], &probabilities = s[5],
                     &chosen = s[6];
    at::Tensor &inner = s[3], &active = s[4];
    const Routes routes = routes_of(probabilities, chosen);
    const at::Tensor grad = rows(grad_output);
    const at::Tensor y = rows(restored(kept_y, input, p.norm));
    at::Tensor grad_y = half.inputs ? at::zeros_like(y) : at::Tensor();
    const at::Tensor grad_weights =
        half.inputs ? at::empty_like(routes.weights) : at::Tensor();  // by expert
    for_each(routes, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      const at::Tensor weight = routes.weights.narrow(0, begin, count).unsqueeze(1),
                       its_inner = inner.narrow(0, begin, count),
                       its_active = active.narrow(0, begin, count);
      at::Tensor its_grad = tokens_of(grad, routes, begin, count);
      if (half.inputs) {
        const at::Tensor grad_active = product(its_grad, p.out_weight(expert));
        at::Tensor its_weights = grad_weights.narrow(0, begin, count);
        at::sum_out(its_weights, grad_active.mul(its_active), 1, false, at::kFloat);
        gated_backward(grad_active.mul_(weight), its_inner, z_.activation);
      }
      if (half.weights) {
        store_product(d.out_weight(expert), its_grad.mul_(weight), its_active, accumulate[0]);
        its_grad.reset();
        store_product(d.in_weight(expert), its_inner, tokens_of(y, routes, begin, count),
                      accumulate[0]);
      }
      its_grad.reset();
      if (half.inputs)
        grad_y.index_add_(0, routes.rows.narrow(0, begin, count),
                          product(its_inner, p.in_weight(expert)));
    });
    if (half.weights) store_idle(d, routes, accumulate[0]);
    if (!half.inputs) return {};
    const at::Tensor grad_logits =
        logits_backward(grad_weights, probabilities, chosen, routes, batch).to(y.scalar_type());
    store_product(d.router, grad_logits, y, accumulate[1]);
    product_into(grad_y, grad_logits, p.router, true);
    if (half.weights)
      inner.reset(), active.reset();
    else
      saved.tensors = s;
    return through_norm_and_residual(std::move(grad_y), grad_output, input, mean, rstd, p.norm,
                                     d.norm, nullptr, accumulate[1]);
  }

 private:
  /// Parameters or gradients. An expert's gate, up and down lie behind each other.
  struct Tensors {
    at::Tensor experts, router;
    NormParams norm;
    std::int64_t ffn = 0, hidden = 0;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups)
        : ffn(z.ffn), hidden(z.hidden) {
      GroupTensors split(groups[0]), whole(groups[1]);
      experts = split.next({z.experts, 3 * ffn * hidden});
      router = whole.next({z.experts, hidden});
      norm = next_norm(whole, z);
    }
    at::Tensor in_weight(std::int64_t expert) const {
      return experts.select(0, expert).narrow(0, 0, 2 * ffn * hidden).view({2 * ffn, hidden});
    }
    at::Tensor out_weight(std::int64_t expert) const {
      return experts.select(0, expert)
          .narrow(0, 2 * ffn * hidden, ffn * hidden)
          .view({hidden, ffn});
    }
  };

  /// The weights of the chosen experts, f32 (n, k).
  at::Tensor weights_of(const at::Tensor& probabilities, const at::Tensor& chosen) const {
    at::Tensor weights = probabilities.gather(1, chosen);
    return z_.norm_topk ? weights.div_(weights.sum(1, true)) : weights;
  }

  Routes routes_of(const at::Tensor& probabilities, const at::Tensor& chosen) const {
    Routes routes;
    const at::Tensor flat = chosen.view({-1});
    routes.pairs = at::argsort(flat, /*stable=*/true);
    routes.rows = at::div(routes.pairs, z_.experts_per_token, "floor");
    routes.weights = weights_of(probabilities, chosen).view({-1}).index_select(0, routes.pairs);
    routes.counts = at::bincount(flat, {}, z_.experts);
    const at::Tensor here = routes.counts.cpu();
    routes.begin.assign(1, 0);
    for (std::int64_t expert = 0; expert < z_.experts; ++expert)
      routes.begin.push_back(routes.begin.back() + here.const_data_ptr<std::int64_t>()[expert]);
    return routes;
  }

  /// f(expert, its first pair, its pairs) for each expert that has any.
  template <class F>
  void for_each(const Routes& routes, const F& f) const {
    for (std::int64_t expert = 0; expert < z_.experts; ++expert) {
      const auto e = static_cast<std::size_t>(expert);
      const std::int64_t count = routes.begin[e + 1] - routes.begin[e];
      if (count > 0) f(expert, routes.begin[e], count);
    }
  }

  /// Rows of x of so many pairs, (count, H).
  static at::Tensor tokens_of(const at::Tensor& x, const Routes& routes, std::int64_t begin,
                              std::int64_t count) {
    return x.index_select(0, routes.rows.narrow(0, begin, count));
  }

  /// The gradients of experts without tokens.
  void store_idle(const Tensors& d, const Routes& routes, bool accumulate) const {
    for (std::int64_t expert = 0; expert < z_.experts; ++expert) {
      const auto e = static_cast<std::size_t>(expert);
      if (routes.begin[e + 1] == routes.begin[e])
        store_zero(d.experts.select(0, expert), accumulate);
    }
  }

  /// The gradient of the router's logits, f32 (n, E). grad_weights: of the weights, by expert.
  at::Tensor logits_backward(const at::Tensor& grad_weights, const at::Tensor& probabilities,
                             const at::Tensor& chosen, const Routes& routes,
                             const Batch& batch) const {
    at::Tensor of_chosen = at::empty_like(grad_weights);
    of_chosen.index_copy_(0, routes.pairs, grad_weights);
    of_chosen = of_chosen.view(chosen.sizes());
    if (z_.norm_topk) {  // w = p / s: (d w - sum of w d w) / s
      const at::Tensor sum = probabilities.gather(1, chosen).sum(1, true);
      const at::Tensor weights = weights_of(probabilities, chosen);
      of_chosen.sub_(at::mul(of_chosen, weights).sum(1, true)).div_(sum);
    }
    at::Tensor grad = at::zeros_like(probabilities).scatter_(1, chosen, of_chosen);
    if (z_.router_aux_loss > 0 && z_.first()) grad.add_(balance(routes, batch));
    // Softmax.
    grad.sub_(at::mul(grad, probabilities).sum(1, true)).mul_(probabilities);
    return grad;
  }

  /// The gradient of each probability of an expert, f32 (E), through the loss that balances
  /// experts: factor E / (k n^2) sum over experts of (their tokens x the sum of their
  /// probabilities). Loss and balance of a micro-batch have the weight of its tokens.
  at::Tensor balance(const Routes& routes, const Batch& batch) const {
    const double factor = z_.router_aux_loss * static_cast<double>(z_.experts) * batch.loss_weight /
                          static_cast<double>(routes.rows.numel());
    at::Tensor each = routes.counts.to(at::kFloat).mul_(factor);
    return batch.loss_scale.defined() ? each.mul_(batch.loss_scale) : each;
  }
};

}  // namespace

std::unique_ptr<Block> make_experts(const LocalShape& shape) {
  return std::make_unique<Experts>(shape);
}

}  // namespace rehearse::models
