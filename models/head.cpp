// The head: final norm, BERT's masked-LM transform, product with the vocabulary table (tied or
// not), and cross-entropy. The table is split by rows over tp (vocabulary-parallel loss,
// Megatron-LM, section 3). Padding rows of the table do not count in the loss.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "models/layers.h"

namespace rehearse::models {
namespace {

class Head final : public Normed {
 public:
  explicit Head(const LocalShape& shape) : Normed(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    Norm norm = normed(input, p.norm);
    at::Tensor x = rows(norm.y);
    at::Tensor gelu_input, active;
    Norm second;
    if (z_.bert) {
      gelu_input = affine(x, p.transform_weight, p.transform_bias);
      x.reset();
      if (!z_.keeps_norm) norm.y.reset();
      active = at::gelu(gelu_input);
      second = norm_forward(active, p.second, z_.epsilon);
      x = second.y;
    }
    const at::Tensor logits = z_.bert ? affine(x, p.table, p.table_bias) : product(x, p.table.t());
    const at::Tensor stats = exponentiate(logits, batch.labels, shard());
    if (saved != nullptr) {
      saved->tensors = {kept(norm), norm.mean, norm.rstd, logits};
      if (z_.bert) {
        for (const at::Tensor& t : {gelu_input, active, second.y, second.mean, second.rstd}) {
          saved->tensors.push_back(t);
        }
      }
    }
    return stats.view({input.size(0), input.size(1), 3});
  }

  at::Tensor backward(program::Pass pass, std::span<const at::Tensor> params,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const Batch& batch, std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params), d(z_, grads);
    const Halves half(pass);
    Saved::Tensors s = std::exchange(saved.tensors, {});
    // s[3] holds exponentials, which to_gradient overwrites. BERT: s[4] `before`, s[5] `active`,
    // s[6..8] the second norm.
    at::Tensor &y = s[0], &mean = s[1], &rstd = s[2], &grad_logits = s[3];
    if (half.inputs)
      to_gradient(grad_logits, grad_output.view({z_.tp, -1, 3}), batch.labels, shard(),
                  batch.loss_weight, batch.loss_scale);
    if (half.weights) {
      if (!z_.bert) y = restored(y, input, p.norm);
      store_product(d.table, grad_logits, z_.bert ? s[6] : rows(y), accumulate[0]);
      if (z_.bert)
        store_row_sum(d.table_bias, grad_logits, accumulate[z_.tied ? 1 : 0]);
      else
        y.reset();
    }
    if (!half.inputs) return {};
    at::Tensor grad = product(grad_logits, p.table);
    if (half.weights)
      grad_logits.reset();
    else
      saved.tensors = s;
    const bool add = accumulate.back();
    if (z_.bert) {
      grad = norm_backward(grad, s[5], s[7], s[8], p.second, d.second, add);
      at::gelu_backward_out(grad, grad, s[4], "none");
      store_row_sum(d.transform_bias, grad, add);
      y = restored(y, input, p.norm);
      store_product(d.transform_weight, grad, rows(y), add);
      y.reset();
      grad = product(grad, p.transform_weight);
    }
    return norm_backward(grad.view(input.sizes()), input, mean, rstd, p.norm, d.norm, add);
  }

 private:
  /// Groups, first to last: the table (tied or not; BERT's untied one with its bias), BERT's bias
  /// of a tied table, the group that is not split over tp.
  struct Tensors {
    at::Tensor table, table_bias, transform_weight, transform_bias;
    NormParams norm, second;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups) {
      GroupTensors split(groups[0]), whole(groups[groups.size() - 1]);
      table = split.next({z.padded_vocab, z.hidden});
      if (z.bert && z.tied && groups[1].defined()) table_bias = groups[1].view({z.padded_vocab});
      if (z.bert && !z.tied) table_bias = split.next({z.padded_vocab});
      norm = next_norm(whole, z);
      if (!z.bert) return;
      transform_weight = whole.next({z.hidden, z.hidden});
      transform_bias = whole.next({z.hidden});
      second = next_norm(whole, z);
    }
  };

  Shard shard() const {
    const std::int64_t begin = z_.tp_rank * z_.padded_vocab;
    return {z_.tp_rank, begin, std::clamp<std::int64_t>(z_.vocab - begin, 0, z_.padded_vocab),
            z_.logit_cap};
  }
};

}  // namespace

std::unique_ptr<Block> make_head(const LocalShape& shape) { return std::make_unique<Head>(shape); }

}  // namespace rehearse::models
