// Builds segments and parameter groups from hyperparameters. GPT is pre-LN with a final norm in the
// head (Radford et al. 2019). BERT is post-LN (Devlin et al. 2019); a layer norm needs the complete
// sum over tp, so each norm is the first part of the segment after the all-reduce. LLaMA has
// RMSNorm, rotary positions and SwiGLU (Touvron et al. 2023); with other keys its layers are those
// of Gemma 2 (Gemma Team 2024) or Mixtral (Jiang et al. 2024).
//
// Tensor names are Hugging Face's. Matrices have shape (out, in), with heads as a separate
// dimension, so that a tensor-parallel shard is a slice of one dimension.
#include "engine/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/base/numbers/divisors.h"
#include "engine/model/check.h"

namespace rehearse::model {
namespace {

using Shape = std::vector<std::int64_t>;

/// Collects the tensors of a model, in the order of the segments, into split and whole groups.
class Builder {
 public:
  explicit Builder(ModelSpec& model) : model_(model) {}

  void segment(std::string name, SegmentKind kind, int layer) {
    model_.segments.push_back({std::move(name), kind, layer, {}});
  }
  Id group(std::string name, bool split) {
    model_.groups.push_back({std::move(name), split, {}});
    const Id id = static_cast<Id>(model_.groups.size() - 1);
    use(id);
    return id;
  }
  void use(Id group) { model_.segments.back().groups.push_back(group); }
  Id split_group() { return group(model_.segments.back().name + ".split", true); }
  Id whole_group() { return group(model_.segments.back().name + ".whole", false); }

  void matrix(Id group, std::string name, Shape shape, int split, double std = init_std) {
    model_.groups[group].tensors.push_back(
        {std::move(name), std::move(shape), split, true, Init::normal, std});
  }
  void bias(Id group, std::string name, Shape shape, int split) {
    model_.groups[group].tensors.push_back(
        {std::move(name), std::move(shape), split, false, Init::zeros, 0});
  }
  /// An RMSNorm of each head.
  void head_norm(Id group, const std::string& prefix) { factors(group, prefix, model_.head_dim); }
  void norm(Id group, const std::string& prefix, bool with_bias = true) {
    factors(group, prefix, model_.hidden);
    if (with_bias) bias(group, prefix + ".bias", {model_.hidden}, -1);
  }

  static constexpr double init_std = 0.02;  // as in GPT-2 and BERT

 private:
  void factors(Id group, const std::string& prefix, std::int64_t elements) {
    const Init init = model_.norm_offset ? Init::zeros : Init::ones;
    model_.groups[group].tensors.push_back({prefix + ".weight", {elements}, -1, false, init, 0});
  }

  ModelSpec& model_;
};

void build_gpt(ModelSpec& m) {
  Builder b(m);
  const std::int64_t h = m.hidden, d = m.head_dim, heads = m.heads;
  // Initial weights of residual projections are divided by the square root of the number of
  // projections (GPT-2, section 2.3).
  const double residual_std = Builder::init_std / std::sqrt(2.0 * m.layers);
  b.segment("embedding", SegmentKind::embedding, -1);
  const Id wte = b.group("wte", true);
  b.matrix(wte, "transformer.wte.weight", {m.padded_vocab, h}, 0);
  b.matrix(b.whole_group(), "transformer.wpe.weight", {m.max_positions, h}, -1);
  for (int i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    b.segment(fmt::format("L{}.attention", i), SegmentKind::attention, i);
    Id split = b.split_group(), whole = b.whole_group();
    b.matrix(split, layer + "attn.c_attn.weight", {3, heads, d, h}, 1);
    b.bias(split, layer + "attn.c_attn.bias", {3, heads, d}, 1);
    b.matrix(split, layer + "attn.c_proj.weight", {h, heads, d}, 1, residual_std);
    b.norm(whole, layer + "ln_1");
    b.bias(whole, layer + "attn.c_proj.bias", {h}, -1);
    b.segment(fmt::format("L{}.mlp", i), SegmentKind::mlp, i);
    split = b.split_group(), whole = b.whole_group();
    b.matrix(split, layer + "mlp.c_fc.weight", {m.ffn, h}, 0);
    b.bias(split, layer + "mlp.c_fc.bias", {m.ffn}, 0);
    b.matrix(split, layer + "mlp.c_proj.weight", {h, m.ffn}, 1, residual_std);
    b.norm(whole, layer + "ln_2");
    b.bias(whole, layer + "mlp.c_proj.bias", {h}, -1);
  }
  b.segment("head", SegmentKind::head, -1);
  if (m.tied) {
    b.use(wte);
  } else {
    b.matrix(b.split_group(), "lm_head.weight", {m.padded_vocab, h}, 0);
  }
  b.norm(b.whole_group(), "transformer.ln_f");
}

void build_bert(ModelSpec& m) {
  Builder b(m);
  const std::int64_t h = m.hidden, d = m.head_dim, heads = m.heads;
  std::string last_norm = "bert.embeddings.LayerNorm";
  b.segment("embedding", SegmentKind::embedding, -1);
  const Id wte = b.group("wte", true);
  b.matrix(wte, "bert.embeddings.word_embeddings.weight", {m.padded_vocab, h}, 0);
  const Id tables = b.whole_group();
  b.matrix(tables, "bert.embeddings.position_embeddings.weight", {m.max_positions, h}, -1);
  b.matrix(tables, "bert.embeddings.token_type_embeddings.weight", {2, h}, -1);
  for (int i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("bert.encoder.layer.{}.", i);
    b.segment(fmt::format("L{}.attention", i), SegmentKind::attention, i);
    Id split = b.split_group(), whole = b.whole_group();
    // Query, key and value weights are adjacent, so one product with a (3 hidden, hidden) matrix
    // computes all three.
    for (const char* part : {"query", "key", "value"}) {
      b.matrix(split, layer + "attention.self." + part + ".weight", {heads, d, h}, 0);
    }
    for (const char* part : {"query", "key", "value"}) {
      b.bias(split, layer + "attention.self." + part + ".bias", {heads, d}, 0);
    }
    b.matrix(split, layer + "attention.output.dense.weight", {h, heads, d}, 1);
    b.norm(whole, last_norm);
    b.bias(whole, layer + "attention.output.dense.bias", {h}, -1);
    b.segment(fmt::format("L{}.mlp", i), SegmentKind::mlp, i);
    split = b.split_group(), whole = b.whole_group();
    b.matrix(split, layer + "intermediate.dense.weight", {m.ffn, h}, 0);
    b.bias(split, layer + "intermediate.dense.bias", {m.ffn}, 0);
    b.matrix(split, layer + "output.dense.weight", {h, m.ffn}, 1);
    b.norm(whole, layer + "attention.output.LayerNorm");
    b.bias(whole, layer + "output.dense.bias", {h}, -1);
    last_norm = layer + "output.LayerNorm";
  }
  b.segment("head", SegmentKind::head, -1);
  if (m.outputs > 0) {
    m.tied = false;
    const Id rows = b.split_group();
    b.matrix(rows, "qa_outputs.weight", {m.outputs, h}, 0);
    b.bias(rows, "qa_outputs.bias", {m.outputs}, 0);
    b.norm(b.whole_group(), last_norm);
    return;
  }
  if (m.tied) b.use(wte);
  const Id split = b.split_group();
  if (!m.tied) b.matrix(split, "cls.predictions.decoder.weight", {m.padded_vocab, h}, 0);
  b.bias(split, "cls.predictions.bias", {m.padded_vocab}, 0);
  const Id whole = b.whole_group();
  b.norm(whole, last_norm);
  b.matrix(whole, "cls.predictions.transform.dense.weight", {h, h}, -1);
  b.bias(whole, "cls.predictions.transform.dense.bias", {h}, -1);
  b.norm(whole, "cls.predictions.transform.LayerNorm");
}

/// The weights of a feed-forward layer, or of its experts and their router.
void gated_layers(Builder& b, const ModelSpec& m, const std::string& layer, Id split, Id whole) {
  const std::int64_t h = m.hidden;
  const auto gated = [&](const std::string& prefix, std::array<const char*, 3> names) {
    b.matrix(split, fmt::format("{}{}.weight", prefix, names[0]), {m.ffn, h}, 0);
    b.matrix(split, fmt::format("{}{}.weight", prefix, names[1]), {m.ffn, h}, 0);
    b.matrix(split, fmt::format("{}{}.weight", prefix, names[2]), {h, m.ffn}, 1);
  };
  constexpr std::array llama = {"gate_proj", "up_proj", "down_proj"}, mixtral = {"w1", "w3", "w2"};
  const std::string mlp = layer + (m.mixtral_names ? "block_sparse_moe." : "mlp.");
  if (m.experts == 0) return gated(mlp, llama);
  for (int expert = 0; expert < m.experts; ++expert)
    gated(fmt::format("{}experts.{}.", mlp, expert), m.mixtral_names ? mixtral : llama);
  b.matrix(whole, mlp + "gate.weight", {m.experts, h}, -1);
}

void build_llama(ModelSpec& m) {
  Builder b(m);
  const std::int64_t h = m.hidden, d = m.head_dim;
  b.segment("embedding", SegmentKind::embedding, -1);
  const Id wte = b.group("wte", true);
  b.matrix(wte, "model.embed_tokens.weight", {m.padded_vocab, h}, 0);
  for (int i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    b.segment(fmt::format("L{}.attention", i), SegmentKind::attention, i);
    Id split = b.split_group();
    b.matrix(split, layer + "self_attn.q_proj.weight", {m.heads, d, h}, 0);
    b.matrix(split, layer + "self_attn.k_proj.weight", {m.kv_heads, d, h}, 0);
    b.matrix(split, layer + "self_attn.v_proj.weight", {m.kv_heads, d, h}, 0);
    if (m.qkv_bias) {
      b.bias(split, layer + "self_attn.q_proj.bias", {m.heads, d}, 0);
      b.bias(split, layer + "self_attn.k_proj.bias", {m.kv_heads, d}, 0);
      b.bias(split, layer + "self_attn.v_proj.bias", {m.kv_heads, d}, 0);
    }
    b.matrix(split, layer + "self_attn.o_proj.weight", {h, m.heads, d}, 1);
    const Id whole = b.whole_group();
    b.norm(whole, layer + "input_layernorm", false);
    if (m.output_norm) b.norm(whole, layer + "post_attention_layernorm", false);
    if (m.qk_norm) {
      b.head_norm(whole, layer + "self_attn.q_norm");
      b.head_norm(whole, layer + "self_attn.k_norm");
    }
    b.segment(fmt::format("L{}.mlp", i), SegmentKind::mlp, i);
    split = b.split_group();
    const Id norms = b.whole_group();
    gated_layers(b, m, layer, split, norms);
    // LLaMA's name of this norm is that of attention's output norm in Gemma 2.
    b.norm(norms, layer + (m.output_norm ? "pre_feedforward_" : "post_attention_") + "layernorm",
           false);
    if (m.output_norm) b.norm(norms, layer + "post_feedforward_layernorm", false);
  }
  b.segment("head", SegmentKind::head, -1);
  if (m.tied) {
    b.use(wte);
  } else {
    b.matrix(b.split_group(), "lm_head.weight", {m.padded_vocab, h}, 0);
  }
  b.norm(b.whole_group(), "model.norm", false);
}

/// hidden / heads. Throws where that is no whole number.
int default_head_dim(const ModelSpec& m) {
  require(m.heads >= 1, m, "heads", m.heads, "must be at least 1");
  require(m.hidden % m.heads == 0, m, "heads", m.heads,
          fmt::format("does not divide hidden = {} (nearest that does: {}), so head_dim must be "
                      "stated",
                      m.hidden, nearest_divisor(m.hidden, m.heads)));
  return m.hidden / m.heads;
}

}  // namespace

ModelSpec build_model(ModelSpec m) {
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) m.head_dim = default_head_dim(m);
  // std::min keeps the defaults inside 32 bits; check() refuses the sizes that are too large.
  if (m.ffn == 0) m.ffn = std::min(m.hidden, 1 << 20) * 4;
  if (m.max_positions == 0) m.max_positions = m.seq_len;
  if (m.padded_vocab == 0) m.padded_vocab = (std::min(m.vocab, 1 << 24) + 127) / 128 * 128;
  if (m.norm_epsilon == 0) m.norm_epsilon = default_epsilon(m.family);
  check(m);
  m.groups.clear();
  m.segments.clear();
  switch (m.family) {
    case Family::gpt:
      build_gpt(m);
      break;
    case Family::bert:
      build_bert(m);
      break;
    case Family::llama:
      build_llama(m);
      break;
  }
  return m;
}

double default_epsilon(Family family) { return family == Family::bert ? 1e-12 : 1e-5; }

double rope_attention(const RopeScaling& scaling) {
  if (scaling.attention > 0) return scaling.attention;
  if (scaling.factor <= 1) return 1;
  if (scaling.type == RopeScaling::Type::yarn) return 0.1 * std::log(scaling.factor) + 1;
  if (scaling.type == RopeScaling::Type::longrope)
    return std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.positions));
  return 1;
}

std::int64_t query_width(const ModelSpec& model) {
  return std::int64_t{model.heads} * model.head_dim;
}

std::int64_t key_width(const ModelSpec& model) {
  return std::int64_t{model.kv_heads} * model.head_dim;
}

int layers_per_token(const ModelSpec& model) {
  return model.experts > 0 ? model.experts_per_token : 1;
}

double score_scale(const ModelSpec& model) {
  return 1 / std::sqrt(model.query_scalar > 0 ? model.query_scalar : model.head_dim);
}

bool has_window(const ModelSpec& model, int layer) {
  return model.window > 0 &&
         (model.global_every == 0 || layer % model.global_every != model.global_every - 1);
}

std::int64_t loss_columns(const ModelSpec& model, int tp) {
  const std::int64_t all = model.outputs > 0 ? model.outputs : model.padded_vocab;
  return model.software.logits == software::Logits::gathered ? all : all / tp;
}

std::int64_t loss_numbers(const ModelSpec& model, int tp, std::int64_t element) {
  constexpr std::int64_t statistics = 3;
  if (model.software.logits == software::Logits::divided || tp == 1) return statistics;
  return statistics + (loss_columns(model, tp) / tp * element + 3) / 4;
}

int attention_span(const ModelSpec& model, int layer) {
  return has_window(model, layer) ? std::min(model.window, model.seq_len) : model.seq_len;
}

std::size_t shape_of(const ModelSpec& model, Id segment) {
  const Segment& s = model.segments[segment];
  const bool other =
      s.kind == SegmentKind::attention && model.window > 0 && !has_window(model, s.layer);
  return other ? segment_shapes - 1 : static_cast<std::size_t>(s.kind);
}

bool writes_scores(const ModelSpec& model) {
  return model.software.attention == software::Attention::written ||
         (model.attention_cap > 0 && model.software.soft_caps == software::SoftCaps::separate);
}

int tensor_divisor(const ModelSpec& model) {
  if (model.output_norm) return 1;
  return std::gcd(std::gcd(std::gcd(model.heads, model.kv_heads), model.outputs),
                  std::gcd(model.ffn, model.padded_vocab));
}

std::vector<Id> gradients_of(const ModelSpec& model, Id segment, program::Pass pass) {
  std::vector<Id> groups;
  if (!is_backward(pass)) return groups;
  for (const Id group : model.segments.at(segment).groups)
    if (pass == program::Pass::backward ||
        model.groups[group].split == (pass == program::Pass::backward_weight))
      groups.push_back(group);
  return groups;
}

std::int64_t elements_of(const ParamGroup& group, int tp) {
  std::int64_t total = 0;
  for (const TensorSpec& tensor : group.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    if (tensor.split >= 0) {
      const std::int64_t extent = tensor.shape[static_cast<std::size_t>(tensor.split)];
      if (extent % tp != 0) {
        throw InputError(fmt::format("tp = {} does not divide the {} {} of {}", tp, extent,
                                     tensor.shape.size() > 2 ? "heads" : "rows or columns",
                                     tensor.name));
      }
      elements /= tp;
    }
    total += elements;
  }
  return total;
}

std::int64_t parameters_of(const ModelSpec& model) {
  std::int64_t total = 0;
  for (const ParamGroup& group : model.groups) total += elements_of(group, 1);
  return total;
}

std::int64_t idle_parameters_of(const ModelSpec& model) {
  const std::int64_t idle = std::max(0, model.experts - model.experts_per_token);
  return 3 * idle * model.layers * model.ffn * model.hidden;
}

}  // namespace rehearse::model
