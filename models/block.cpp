#include "models/block.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/errors.h"
#include "models/large_products.h"
#include "models/layers.h"
#include "models/rotary.h"

namespace rehearse::models {

std::int64_t Saved::bytes() const {
  std::int64_t total = 0;
  for (const at::Tensor& t : tensors) total += static_cast<std::int64_t>(t.nbytes());
  return total;
}

namespace {

LocalShape shape_of(const model::ModelSpec& model, Id segment, int tp, int tp_rank,
                    program::DType dtype) {
  if (model.outputs > 0)
    throw InputError(fmt::format(
        "model {}: a head with {} outputs is simulated only; 0, the vocabulary, can be trained",
        model.name, model.outputs));
  if (dtype != program::DType::f32 && dtype != program::DType::bf16 &&
      dtype != program::DType::f16) {
    throw InputError(fmt::format("model {}: parameters are f32, bf16 or f16", model.name));
  }
  if (dtype == program::DType::f32)
    large_products();  // decides now, so that the first step is not slower than others
  if (model.output_norm && tp > 1)
    throw InputError(
        fmt::format("model {}: norms of what attention and feed-forward return need "
                    "tp = 1",
                    model.name));
  const model::Segment& s = model.segments[segment];
  for (const Id group : s.groups) elements_of(model.groups[group], tp);  // throws: not divisible
  LocalShape z;
  z.hidden = model.hidden;
  z.heads = model.heads / tp;
  z.kv_heads = model.kv_heads / tp;
  z.head_dim = model.head_dim;
  z.ffn = model.ffn / tp;
  z.vocab = model.vocab;
  z.padded_vocab = model.padded_vocab / tp;
  z.layer = s.layer;
  z.tp = tp;
  z.tp_rank = tp_rank;
  z.bert = model.family == model::Family::bert;
  z.tied = model.tied;
  z.dropout = model.dropout;
  z.epsilon = model.norm_epsilon;
  z.llama = model.family == model::Family::llama;
  z.qkv_bias = !z.llama || model.qkv_bias;
  z.qk_norm = model.qk_norm;
  z.activation = model.activation;
  z.experts = model.experts;
  z.experts_per_token = layers_per_token(model);
  z.norm_topk = model.norm_topk;
  z.router_aux_loss = model.router_aux_loss;
  z.output_norm = model.output_norm;
  z.norm_offset = model.norm_offset ? 1 : 0;
  z.embedding_scale = model.scaled_embedding ? std::sqrt(model.hidden) : 1;
  z.score_scale = score_scale(model);
  z.attention_cap = model.attention_cap;
  z.logit_cap = model.logit_cap;
  if (z.llama) z.rotary = rotary_of(model, s.layer);
  // A window that holds the whole sequence needs no mask.
  z.window = attention_span(model, s.layer) < model.seq_len ? model.window : 0;
  return z;
}

}  // namespace

std::unique_ptr<Block> make_block(const model::ModelSpec& model, Id segment, int tp, int tp_rank,
                                  program::DType dtype, software::Norms norms) {
  LocalShape z = shape_of(model, segment, tp, tp_rank, dtype);
  z.keeps_norm = norms != software::Norms::again;
  switch (model.segments[segment].kind) {
    case model::SegmentKind::embedding:
      return make_embedding(z);
    case model::SegmentKind::attention:
      return make_attention(z);
    case model::SegmentKind::mlp:
      return z.experts > 0 ? make_experts(z) : make_mlp(z);
    case model::SegmentKind::head:
      return make_head(z);
  }
  throw ProgramError("a segment of no kind");
}

std::unique_ptr<PartedAttention> make_parted_attention(const model::ModelSpec& model, Id segment,
                                                       int tp, int tp_rank, program::DType dtype,
                                                       int ranks) {
  if (model.output_norm)
    throw InputError(
        fmt::format("model {}: attention in parts has no norm of what it returns", model.name));
  return make_parted_attention(shape_of(model, segment, tp, tp_rank, dtype), ranks);
}

at::Tensor loss_sum(const at::Tensor& gathered_stats, const Batch& batch) {
  // Log-sum-exp over the shards, minus the target's logit, which only one shard reports.
  const at::Tensor stats = gathered_stats.to(at::kDouble);
  const at::Tensor maxima = stats.select(-1, 0);
  const at::Tensor maximum = std::get<0>(maxima.max(0));
  const at::Tensor sum = maxima.sub(maximum).exp_().mul_(stats.select(-1, 1)).sum(0);
  const at::Tensor target = stats.select(-1, 2).sum(0);
  const at::Tensor loss = sum.log_().add_(maximum).sub_(target);
  return loss.masked_fill(batch.labels.lt(0), 0).sum();
}

at::Tensor tensor_view(const model::ModelSpec& model, Id group, std::size_t tensor, int tp,
                       const at::Tensor& flat) {
  std::int64_t offset = 0;
  const auto& tensors = model.groups[group].tensors;
  for (std::size_t i = 0;; ++i) {
    std::vector<std::int64_t> shape = tensors[i].shape;
    if (tensors[i].split >= 0) shape[static_cast<std::size_t>(tensors[i].split)] /= tp;
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    if (i == tensor) return flat.narrow(0, offset, elements).view(shape);
    offset += elements;
  }
}

}  // namespace rehearse::models
