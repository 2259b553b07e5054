// Builds segments and parameter groups from hyperparameters. GPT is pre-LN with a final norm in the
// head (Radford et al. 2019). BERT is post-LN (Devlin et al. 2019); a layer norm needs the complete
// sum over tp, so each norm is the first part of the segment after the all-reduce. LLaMA has
// RMSNorm, rotary positions and SwiGLU (Touvron et al. 2023).
//
// Tensor names are Hugging Face's. Matrices have shape (out, in), with heads as a separate
// dimension, so that a tensor-parallel shard is a slice of one dimension.
#include "engine/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "engine/base/divisors.h"
#include "engine/base/names.h"
#include "engine/base/refusal.h"

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
  void head_norm(Id group, const std::string& prefix) {
    model_.groups[group].tensors.push_back(
        {prefix + ".weight", {model_.head_dim}, -1, false, Init::ones, 0});
  }
  void norm(Id group, const std::string& prefix, bool with_bias = true) {
    model_.groups[group].tensors.push_back(
        {prefix + ".weight", {model_.hidden}, -1, false, Init::ones, 0});
    if (with_bias) bias(group, prefix + ".bias", {model_.hidden}, -1);
  }

  static constexpr double init_std = 0.02;  // as in GPT-2 and BERT

 private:
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
    if (m.qk_norm) {
      b.head_norm(whole, layer + "self_attn.q_norm");
      b.head_norm(whole, layer + "self_attn.k_norm");
    }
    b.segment(fmt::format("L{}.mlp", i), SegmentKind::mlp, i);
    split = b.split_group();
    b.matrix(split, layer + "mlp.gate_proj.weight", {m.ffn, h}, 0);
    b.matrix(split, layer + "mlp.up_proj.weight", {m.ffn, h}, 0);
    b.matrix(split, layer + "mlp.down_proj.weight", {h, m.ffn}, 1);
    b.norm(b.whole_group(), layer + "post_attention_layernorm", false);
  }
  b.segment("head", SegmentKind::head, -1);
  if (m.tied) {
    b.use(wte);
  } else {
    b.matrix(b.split_group(), "lm_head.weight", {m.padded_vocab, h}, 0);
  }
  b.norm(b.whole_group(), "model.norm", false);
}

void require(bool good, const ModelSpec& m, const char* key, auto value, const std::string& rule) {
  if (!good)
    throw Refused({fmt::format("model.{}", key),
                   fmt::format("model {}: {} = {} {}", m.name, key, value, rule)});
}

/// The keys that llama alone has.
void check_positions(const ModelSpec& m) {
  const bool llama = m.family == Family::llama;
  require(m.window >= 0 && m.window <= 1 << 24, m, "window", m.window,
          "must be at least 0 and at most 16777216");
  require(llama || m.window == 0, m, "window", m.window, "must be 0: only llama has a window");
  require(m.rope_theta >= 1 && m.rope_theta <= 1e9, m, "rope_theta", m.rope_theta,
          "must be at least 1 and at most 1e9");
  const RopeScaling& scaling = m.rope_scaling;
  require(llama || (m.rope_theta == ModelSpec{}.rope_theta && scaling == RopeScaling{}), m,
          "rope_theta", m.rope_theta, "is of rotary positions, which only llama has");
  require(llama || !m.qkv_bias, m, "qkv_bias", m.qkv_bias,
          "is llama's alone: the other families have all biases");
  require(llama || !m.qk_norm, m, "qk_norm", m.qk_norm, "is llama's alone");
  require(llama || !m.fused_weights, m, "fused_weights", m.fused_weights, "is llama's alone");
  require(scaling.factor >= 1 && scaling.factor <= 1e6, m, "rope_scaling.factor", scaling.factor,
          "must be at least 1 and at most 1e6");
  require(scaling.low > 0 && scaling.low <= 1e6, m, "rope_scaling.low", scaling.low,
          "must be above 0 and at most 1e6");
  require(scaling.high > scaling.low && scaling.high <= 1e6, m, "rope_scaling.high", scaling.high,
          fmt::format("must be above low = {} and at most 1e6", scaling.low));
  require(scaling.positions >= 2 && scaling.positions <= 1 << 24, m, "rope_scaling.positions",
          scaling.positions, "must be at least 2 and at most 16777216");
  using Type = RopeScaling::Type;
  require(scaling.attention == 0 || scaling.type == Type::yarn || scaling.type == Type::longrope, m,
          "rope_scaling.attention", scaling.attention, "is of yarn and longrope");
  for (const auto* numbers : {&scaling.shorter, &scaling.longer}) {
    const std::size_t pairs =
        scaling.type == Type::longrope ? static_cast<std::size_t>(m.head_dim / 2) : 0;
    require(numbers->size() == pairs, m, "rope_scaling.type", name_of(scaling.type),
            fmt::format("has {} numbers where it needs {}, one for each pair of a head",
                        numbers->size(), pairs));
    require(std::ranges::all_of(*numbers, [](double x) { return x >= 1e-3 && x <= 1e6; }), m,
            "rope_scaling.type", name_of(scaling.type),
            "has a number that is below 0.001 or above 1e6");
  }
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

void check(const ModelSpec& m) {
  // Within these limits, products of sizes fit into 64 bits.
  for (const auto& [key, value, most] : {std::tuple{"layers", m.layers, 10'000},
                                         {"hidden", m.hidden, 1 << 20},
                                         {"heads", m.heads, 1 << 20},
                                         {"head_dim", m.head_dim, 1 << 16},
                                         {"ffn", m.ffn, 1 << 23},
                                         {"vocab", m.vocab, 1 << 24},
                                         {"padded_vocab", m.padded_vocab, 1 << 25},
                                         {"max_positions", m.max_positions, 1 << 24},
                                         {"seq_len", m.seq_len, 1 << 24}}) {
    require(value >= 1, m, key, value, "must be at least 1");
    require(value <= most, m, key, value, fmt::format("must be at most {}", most));
  }
  require(query_width(m) <= 1 << 20, m, "head_dim", m.head_dim,
          fmt::format("times heads = {} must be at most 1048576", m.heads));
  require(m.padded_vocab >= m.vocab, m, "padded_vocab", m.padded_vocab,
          fmt::format("must be at least vocab = {}", m.vocab));
  require(m.kv_heads >= 1 && m.heads % m.kv_heads == 0, m, "kv_heads", m.kv_heads,
          fmt::format("does not divide heads = {} (nearest that does: {})", m.heads,
                      nearest_divisor(m.heads, m.kv_heads)));
  require(
      m.family == Family::llama || m.kv_heads == m.heads, m, "kv_heads", m.kv_heads,
      fmt::format("must equal heads = {} in this family: grouped queries are llama's", m.heads));
  require(
      m.family == Family::llama || m.seq_len <= m.max_positions, m, "seq_len", m.seq_len,
      fmt::format("is beyond max_positions = {}, the rows of the position table", m.max_positions));
  require(m.outputs >= 0 && m.outputs <= 1 << 20, m, "outputs", m.outputs,
          "must be at least 0 and at most 1048576");
  require(m.family == Family::bert || m.outputs == 0, m, "outputs", m.outputs,
          "must be 0: only bert has another head than the vocabulary's");
  require(m.dropout >= 0 && m.dropout < 1, m, "dropout", m.dropout,
          "must be at least 0 and below 1");
  require(m.family != Family::llama || m.dropout == 0, m, "dropout", m.dropout,
          "must be 0: llama has none");
  require(m.family != Family::llama || m.head_dim % 2 == 0, m, "head_dim", m.head_dim,
          "is odd: rotary positions turn pairs of a head's elements");
  require(m.norm_epsilon > 0 && m.norm_epsilon <= 1, m, "norm_epsilon", m.norm_epsilon,
          "must be above 0 and at most 1");
  check_positions(m);
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

int attended(const ModelSpec& model) {
  return model.window > 0 ? std::min(model.window, model.seq_len) : model.seq_len;
}

int tensor_divisor(const ModelSpec& model) {
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

}  // namespace rehearse::model
