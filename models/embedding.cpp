// Token and position embeddings. The token table is split by rows over tp (Megatron-LM, section 3);
// a rank contributes zeros for tokens of other shards. Tensor rank 0 alone adds positions, and for
// BERT token type 0; LLaMA's positions are in its attention, and Gemma multiplies rows by a number.
// GPT applies dropout here, BERT after its first norm (attention.cpp).
//
// Shapes: B samples, T tokens, H = hidden, n = B x T, V rows of this rank's shard of the table.
#include <ATen/core/LegacyTypeDispatch.h>

#include "models/layers.h"

namespace rehearse::models {
namespace {

class Embedding final : public Block {
 public:
  explicit Embedding(const LocalShape& shape) : z_(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& /*input*/,
                     const Batch& batch, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const std::int64_t samples = batch.tokens.size(0), seq = batch.tokens.size(1);
    const at::Tensor table = params[0].view({z_.padded_vocab, z_.hidden});
    const Rows rows(z_, batch);
    // (n, H) -> (B, T, H).
    at::Tensor out = at::index_select(table, 0, rows.index).view({samples, seq, z_.hidden});
    if (rows.outside.defined()) out.masked_fill_(rows.outside.view({samples, seq, 1}), 0);
    if (z_.first() && !z_.llama) {
      const at::Tensor whole = params[1].view({-1, z_.hidden});  // positions, BERT: 2 token types
      out.add_(batch.positions.empty()
                   ? whole.narrow(0, 0, seq)
                   : at::index_select(
                         whole, 0, at::tensor(batch.positions, whole.options().dtype(at::kLong))));
      if (z_.bert) out.add_(whole.select(0, whole.size(0) - 2));
    }
    if (z_.embedding_scale != 1) out.mul_(scale_in(out.scalar_type()));
    const DropoutMask mask = mask_of(batch);
    if (mask.active()) drop(out, mask, {});
    if (saved != nullptr) saved->tensors.clear();
    return out;
  }

  at::Tensor backward(program::Pass /*pass*/, std::span<const at::Tensor> /*params*/,
                      const at::Tensor& /*input*/, Saved& /*saved*/, const at::Tensor& grad_output,
                      const Batch& batch, std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const DropoutMask mask = mask_of(batch);
    at::Tensor grad = grad_output;
    if (mask.active()) {
      grad = grad_output.clone();
      drop(grad, mask, {});
    }
    for (std::size_t i = 0; i < grads.size(); ++i) store_zero(grads[i], accumulate[i]);
    at::Tensor by_row = grad.view({-1, z_.hidden});
    if (z_.first() && !z_.llama) {
      const at::Tensor whole = grads[1].view({-1, z_.hidden});
      const at::ScalarType dtype = whole.scalar_type();
      const at::Tensor by_position = at::sum(grad, {0}, false, dtype);
      if (batch.positions.empty())
        whole.narrow(0, 0, grad.size(1)).add_(by_position);
      else
        whole.index_add_(0, at::tensor(batch.positions, whole.options().dtype(at::kLong)),
                         by_position);
      if (z_.bert) whole.select(0, whole.size(0) - 2).add_(at::sum(by_row, {0}, false, dtype));
    }
    const Rows rows(z_, batch);
    const at::Tensor table = grads[0].view({z_.padded_vocab, z_.hidden});
    const double scale = scale_in(grad_output.scalar_type());
    by_row = by_row.to(table.scalar_type());
    if (rows.outside.defined()) by_row = by_row.masked_fill(rows.outside.view({-1, 1}), 0);
    table.index_add_(0, rows.index, by_row, scale);
    return {};
  }

 private:
  /// The factor of rows, rounded to their type, as transformers rounds it.
  double scale_in(at::ScalarType dtype) const {
    return at::scalar_tensor(z_.embedding_scale, dtype).item<double>();
  }
  /// For each of the n tokens, its row in this shard, and whether the token belongs to another
  /// shard (its row is then 0). `outside` is undefined without tensor parallelism.
  struct Rows {
    at::Tensor index, outside;
    Rows(const LocalShape& z, const Batch& batch) : index(batch.tokens.reshape({-1})) {
      if (z.tp == 1) return;
      index = index.sub(z.tp_rank * z.padded_vocab);
      outside = index.lt(0).logical_or_(index.ge(z.padded_vocab));
      index.masked_fill_(outside, 0);
    }
  };
  DropoutMask mask_of(const Batch& batch) const {
    return {batch, Site::embedding, -1, z_.bert ? 0 : z_.dropout};
  }

  LocalShape z_;
};

}  // namespace

std::unique_ptr<Block> make_embedding(const LocalShape& shape) {
  return std::make_unique<Embedding>(shape);
}

}  // namespace rehearse::models
