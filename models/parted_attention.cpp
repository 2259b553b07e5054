// Attention in parts, over sequences that ranks divide. Rings merge the results of blocks of keys
// and values by the sums of their softmax (Ring Attention, Liu et al. 2023); ranks that exchange
// heads for tokens attend to whole sequences (DeepSpeed Ulysses, Jacobs et al. 2023). The gradient
// of a block needs the output and the sum of all blocks only (FlashAttention, Dao et al. 2022), so
// backward merges nothing.
//
// Shapes as in block.h: B samples, T tokens of this rank, n = B x T, W and K = elements of queries
// and of keys.
#include <ATen/core/LegacyTypeDispatch.h>

#include "models/attention_block.h"

namespace rehearse::models {
namespace {

using model::AttendedBlock;
using model::TokenRun;

/// Tokens of x, (B, T, ...).
at::Tensor tokens_of(const at::Tensor& x, TokenRun run) { return x.narrow(1, run.begin, run.size); }

/// What both forms share. They differ in how tensors are packed for the exchange.
class Parted : public PartedAttention, protected AttentionParts {
 public:
  explicit Parted(const LocalShape& shape) : AttentionParts(shape) {}

 protected:
  /// Where the tensors begin that a form keeps behind y, mean, rstd and what the norms of heads
  /// keep: query and its norm's statistics, key and its norm's statistics.
  std::size_t behind_norms() const { return z_.qk_norm ? 7 : 3; }
  /// Norms of the query (n, W) and of the key (n, K), in place.
  void norm_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& input,
                  const Tensors& p, Saved& saved) const {
    if (!z_.qk_norm) return;
    const at::Tensor q = query.clone(at::MemoryFormat::Contiguous),
                     k = key.clone(at::MemoryFormat::Contiguous);
    const HeadNorms heads = head_norms(heads_of(q, input), heads_of(k, input), p);
    query.copy_(heads.q.y.view(query.sizes())), key.copy_(heads.k.y.view(key.sizes()));
    saved.tensors.insert(saved.tensors.end(), {q, heads.q.rstd, k, heads.k.rstd});
  }
  /// y, mean, rstd.
  Saved::Tensors norm(const at::Tensor& input, const Tensors& p, const Batch& batch) {
    Norm norm = normed(input, p.norm);
    if (drops_embedding(batch)) drop(norm.y, embedding_mask(batch), {});
    return {norm.y, norm.mean, norm.rstd};
  }
  /// The product of the norm's output with `columns` rows of the weights, from `row` on.
  at::Tensor projected(const at::Tensor& y, const Tensors& p, std::int64_t row,
                       std::int64_t columns) const {
    return affine(rows(y), p.qkv_weight.narrow(0, row, columns),
                  p.qkv_bias.defined() ? p.qkv_bias.narrow(0, row, columns) : at::Tensor());
  }
  at::Tensor output_of(const Tensors& p, const at::Tensor& input,
                       const at::Tensor& attention_output, const Batch& batch,
                       const Saved& saved) const {
    return models::project(attention_output, p.out_weight, p.out_bias,
                           z_.bert ? saved.tensors[0] : input, mask(batch), z_.first());
  }
  /// (n, W).
  at::Tensor grad_of_attention_output(const Tensors& p, const at::Tensor& grad_output,
                                      const Batch& batch) const {
    return product(models::project_backward(grad_output, {}, mask(batch), z_.first(), false),
                   p.out_weight);
  }
  /// The rest of backward. `grads`: of query, key and value as attention saw them.
  at::Tensor backward_of_rest(std::span<const at::Tensor> params, const at::Tensor& input,
                              Saved& saved, const at::Tensor& grad_output,
                              const at::Tensor& attention_output, std::array<at::Tensor, 3> grads,
                              const Batch& batch, std::span<const at::Tensor> param_grads,
                              std::span<const bool> accumulate) {
    const Tensors p(z_, params), d(z_, param_grads);
    const Saved::Tensors s = std::exchange(saved.tensors, {});
    const at::Tensor grad =
        models::project_backward(grad_output, d.out_bias, mask(batch), z_.first(), accumulate[1]);
    store_product(d.out_weight, grad, attention_output, accumulate[0]);
    turn({heads_of(grads[0], input), heads_of(grads[1], input)}, batch, Turn::back);
    if (z_.qk_norm) through_head_norms(grads, {s[3], s[5]}, {s[4], s[6]}, p, d, accumulate[1]);
    const at::Tensor grad_y =
        through_projection(grads, s[0], p, d, Halves(program::Pass::backward), accumulate[0], true);
    const DropoutMask dropped = embedding_mask(batch);
    return through_norm_and_residual(grad_y, grad_output, input, s[1], s[2], p.norm, d.norm,
                                     drops_embedding(batch) ? &dropped : nullptr, accumulate[1]);
  }
};

/// Saved: y, mean, rstd, what norms of heads keep, query (n, W); from the first block on output
/// (n, W) and log_sum.
class Ring final : public Parted {
 public:
  using Parted::Parted;

  at::Tensor project(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    saved.tensors = norm(input, p, batch);
    const at::Tensor query = projected(saved.tensors[0], p, 0, z_.width());
    const at::Tensor kv = projected(saved.tensors[0], p, z_.width(), 2 * z_.kv_width());
    norm_heads(query, keys_of(kv), input, p, saved);
    turn({heads_of(query, input), heads_of(keys_of(kv), input)}, batch, Turn::forward);
    saved.tensors.push_back(query);
    return kv;
  }

  at::Tensor attend(const at::Tensor& source, const AttendedBlock& block, const Batch& batch,
                    Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    auto [part, part_sum] =
        models::attend(operands(source, block, batch, saved), reach(block.causal, 0));
    if (saved.tensors.size() == out_at()) {
      saved.tensors.insert(saved.tensors.end(), {part, part_sum});
      return {};
    }
    const at::Tensor out =
        tokens_of(heads_of(saved.tensors[out_at()], batch.tokens), block.queries);
    const at::Tensor sum =
        saved.tensors[out_at() + 1].narrow(2, block.queries.begin, block.queries.size);
    const at::Tensor both = at::logaddexp(sum, part_sum);
    // (B, heads, T) -> (B, T, heads, 1).
    const auto weight = [&](const at::Tensor& of) {
      return of.sub(both).exp_().transpose(1, 2).unsqueeze(3);
    };
    out.mul_(weight(sum)).add_(part.view(out.sizes()).mul(weight(part_sum)));
    sum.copy_(both);
    return {};
  }

  at::Tensor output(std::span<const at::Tensor> params, const at::Tensor& input,
                    const at::Tensor& /*attention_output*/, const Batch& batch,
                    Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return output_of(Tensors(z_, params), input, saved.tensors[out_at()], batch, saved);
  }

  at::Tensor output_backward(std::span<const at::Tensor> params, const at::Tensor& grad_output,
                             const Batch& batch) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return grad_of_attention_output(Tensors(z_, params), grad_output, batch);
  }

  void attend_backward(const at::Tensor& source, const AttendedBlock& block, const Batch& batch,
                       Saved& saved, const BlockGradient& gradient) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    if (block.empty()) {
      gradient.source.zero_();
      return;
    }
    const auto rows_of = [&](const at::Tensor& x) {
      return tokens_of(heads_of(x.view({-1, z_.width()}), batch.tokens), block.queries)
          .reshape({-1, z_.width()});
    };
    const auto [dq, dk, dv] = models::attend_backward(
        rows_of(gradient.grad), operands(source, block, batch, saved),
        rows_of(saved.tensors[out_at()]),
        saved.tensors[out_at() + 1].narrow(2, block.queries.begin, block.queries.size).contiguous(),
        reach(block.causal, 0));
    const at::Tensor query =
        tokens_of(heads_of(gradient.query.view({-1, z_.width()}), batch.tokens), block.queries);
    if (gradient.add)
      query.add_(dq.view(query.sizes()));
    else
      query.copy_(dq.view(query.sizes()));
    if (block.keys.size < batch.tokens.size(1)) gradient.source.zero_();
    const at::Tensor kv = gradient.source.view({-1, 2 * z_.kv_width()});
    const at::Tensor k = tokens_of(heads_of(keys_of(kv), batch.tokens), block.keys);
    const at::Tensor v = tokens_of(heads_of(values_of(kv), batch.tokens), block.keys);
    k.copy_(dk.view(k.sizes())), v.copy_(dv.view(v.sizes()));
  }

  at::Tensor project_backward(std::span<const at::Tensor> params, const at::Tensor& input,
                              Saved& saved, const at::Tensor& grad_output,
                              const at::Tensor& /*attention_output*/, const at::Tensor& grad_source,
                              const Batch& batch, std::span<const at::Tensor> grads,
                              std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const std::int64_t queries = input.size(0) * input.size(1) * z_.width();
    const at::Tensor dq = grad_source.narrow(0, 0, queries).view({-1, z_.width()});
    const at::Tensor dkv =
        grad_source.narrow(0, queries, grad_source.size(0) - queries).view({-1, 2 * z_.kv_width()});
    const at::Tensor out = saved.tensors[out_at()];
    return backward_of_rest(params, input, saved, grad_output, out,
                            {dq, keys_of(dkv), values_of(dkv)}, batch, grads, accumulate);
  }

 private:
  std::size_t out_at() const { return behind_norms() + 1; }
  at::Tensor keys_of(const at::Tensor& kv) const { return kv.narrow(1, 0, z_.kv_width()); }
  at::Tensor values_of(const at::Tensor& kv) const {
    return kv.narrow(1, z_.kv_width(), z_.kv_width());
  }
  Queries operands(const at::Tensor& source, const AttendedBlock& block, const Batch& batch,
                   const Saved& saved) const {
    const at::Tensor kv = source.view({-1, 2 * z_.kv_width()});
    return {tokens_of(heads_of(saved.tensors[behind_norms()], batch.tokens), block.queries),
            tokens_of(heads_of(keys_of(kv), batch.tokens), block.keys),
            tokens_of(heads_of(values_of(kv), batch.tokens), block.keys)};
  }
};

/// Saved: y, mean, rstd, what norms of heads keep; then log_sum of this rank's heads.
class Exchange final : public Parted {
 public:
  Exchange(const LocalShape& shape, int ranks) : Parted(shape), ranks_(ranks) {}

  at::Tensor project(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    saved.tensors = norm(input, p, batch);
    const at::Tensor qkv = projected(saved.tensors[0], p, 0, z_.width() + 2 * z_.kv_width());
    const auto parts = qkv.split_with_sizes({z_.width(), z_.kv_width(), z_.kv_width()}, 1);
    norm_heads(parts[0], parts[1], input, p, saved);
    turn({heads_of(parts[0], input), heads_of(parts[1], input)}, batch, Turn::forward);
    return by_heads(parts, input);
  }

  at::Tensor attend(const at::Tensor& source, const AttendedBlock& /*block*/, const Batch& batch,
                    Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const auto [out, log_sum] = models::attend(operands(source, batch), reach());
    saved.tensors.resize(behind_norms());
    saved.tensors.push_back(log_sum);
    return by_tokens(out, batch);
  }

  at::Tensor output(std::span<const at::Tensor> params, const at::Tensor& input,
                    const at::Tensor& attention_output, const Batch& batch, Saved& saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return output_of(Tensors(z_, params), input, of_tokens(attention_output, batch, z_.width()),
                     batch, saved);
  }

  at::Tensor output_backward(std::span<const at::Tensor> params, const at::Tensor& grad_output,
                             const Batch& batch) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return by_heads({grad_of_attention_output(Tensors(z_, params), grad_output, batch)},
                    grad_output);
  }

  void attend_backward(const at::Tensor& source, const AttendedBlock& /*block*/, const Batch& batch,
                       Saved& saved, const BlockGradient& gradient) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const auto [dq, dk, dv] = models::attend_backward(
        from_tokens(gradient.grad, batch), operands(source, batch),
        from_tokens(gradient.output, batch), saved.tensors[behind_norms()], reach());
    gradient.source.copy_(by_tokens(at::cat({dq, dk, dv}, 1), batch).view(-1));
  }

  at::Tensor project_backward(std::span<const at::Tensor> params, const at::Tensor& input,
                              Saved& saved, const at::Tensor& grad_output,
                              const at::Tensor& attention_output, const at::Tensor& grad_source,
                              const Batch& batch, std::span<const at::Tensor> grads,
                              std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    // (P, B, T, (W + 2 K) / P) -> (B, T, P, ...), of which each part has its heads together.
    const std::int64_t width = z_.width() / ranks_, keys = z_.kv_width() / ranks_;
    const at::Tensor all =
        grad_source.view({ranks_, input.size(0), input.size(1), -1}).permute({1, 2, 0, 3});
    const auto part = [&](std::int64_t begin, std::int64_t size) {
      return all.narrow(3, begin, size).reshape({-1, ranks_ * size});
    };
    return backward_of_rest(
        params, input, saved, grad_output, of_tokens(attention_output, batch, z_.width()),
        {part(0, width), part(width, keys), part(width + keys, keys)}, batch, grads, accumulate);
  }

 private:
  Reach reach() const { return AttentionParts::reach(!z_.bert, z_.window); }

  /// Matrices (n, columns), each of heads, to (P, B, T, sum of columns / P): by the rank that gets
  /// the heads.
  at::Tensor by_heads(at::TensorList parts, const at::Tensor& input) const {
    c10::SmallVector<at::Tensor, 3> by_rank;
    for (const at::Tensor& part : parts)
      by_rank.push_back(part.view({input.size(0), input.size(1), ranks_, -1}));
    return at::cat(by_rank, 3).permute({2, 0, 1, 3}).contiguous();
  }
  /// (P, B, T, columns) -> (B, P T, columns): all tokens of this rank's heads.
  at::Tensor of_heads(const at::Tensor& x, const Batch& batch, std::int64_t columns) const {
    const std::int64_t samples = batch.tokens.size(0), tokens = batch.tokens.size(1);
    return x.view({ranks_, samples, tokens, columns})
        .permute({1, 0, 2, 3})
        .reshape({samples, ranks_ * tokens, columns});
  }
  /// (B P T, columns) -> (P, B, T, columns): by the rank that has the tokens.
  at::Tensor by_tokens(const at::Tensor& x, const Batch& batch) const {
    const std::int64_t samples = batch.tokens.size(0), tokens = batch.tokens.size(1);
    return x.view({samples, ranks_, tokens, x.size(1)}).permute({1, 0, 2, 3}).contiguous();
  }
  /// The inverse: (P, B, T, W / P) -> (B P T, W / P).
  at::Tensor from_tokens(const at::Tensor& x, const Batch& batch) const {
    const std::int64_t width = z_.width() / ranks_;
    return of_heads(x, batch, width).reshape({-1, width});
  }
  /// (P, B, T, columns / P) -> (n, columns): all heads of this rank's tokens.
  at::Tensor of_tokens(const at::Tensor& x, const Batch& batch, std::int64_t columns) const {
    return x.view({ranks_, batch.tokens.size(0), batch.tokens.size(1), columns / ranks_})
        .permute({1, 2, 0, 3})
        .reshape({-1, columns});
  }
  Queries operands(const at::Tensor& source, const Batch& batch) const {
    const std::int64_t width = z_.width() / ranks_, keys = z_.kv_width() / ranks_;
    const at::Tensor qkv = of_heads(source, batch, width + 2 * keys);
    const auto heads = [&](std::int64_t begin, std::int64_t size) {
      return qkv.narrow(2, begin, size).unflatten(2, {-1, z_.head_dim});
    };
    return {heads(0, width), heads(width, keys), heads(width + keys, keys)};
  }

  std::int64_t ranks_;
};

}  // namespace

std::unique_ptr<PartedAttention> make_parted_attention(const LocalShape& shape, int ranks) {
  if (ranks > 0) return std::make_unique<Exchange>(shape, ranks);
  return std::make_unique<Ring>(shape);
}

}  // namespace rehearse::models
