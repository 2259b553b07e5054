#include "tests/models/reference.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>

namespace rehearse::reference {
namespace {

using at::Tensor;

/// The model, weights and masks of one forward pass. Shapes: B samples, T tokens, H = hidden.
struct Net {
  const model::ModelSpec& m;
  const Weights& w;
  const Masks& masks;

  const Tensor& get(const std::string& name) const { return w.at(name); }

  Tensor norm(const Tensor& x, const std::string& name) const {
    const Tensor mean = x.mean(-1, true);
    const Tensor centred = x - mean;
    const Tensor variance = (centred * centred).mean(-1, true);
    return centred / (variance + m.norm_epsilon).sqrt() * get(name + ".weight") +
           get(name + ".bias");
  }
  Tensor rms(const Tensor& x, const std::string& name) const {
    const Tensor weight = get(name + ".weight");
    return x / ((x * x).mean(-1, true) + m.norm_epsilon).sqrt() *
           (m.norm_offset ? weight + 1 : weight);
  }
  /// What attention or feed-forward adds to the residual.
  Tensor added(const Tensor& x, const std::string& norm) const {
    return m.output_norm ? rms(x, norm) : x;
  }
  static Tensor capped(const Tensor& x, double cap) {
    return cap > 0 ? at::tanh(x / cap) * cap : x;
  }
  Tensor drop(const Tensor& x, const std::string& site, int layer) const {
    const auto found = masks.at.find({site, layer});
    return found == masks.at.end() ? x : x * found->second;
  }
  /// q, k, v and result: (B, T, heads, head_dim).
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                   int layer) const {
    const std::int64_t seq = q.size(1);
    const double under_root = m.query_scalar > 0 ? m.query_scalar : double(q.size(3));
    Tensor scores = at::einsum("bqhd,bkhd->bhqk", {q, k}) / std::sqrt(under_root);
    scores = capped(scores, m.attention_cap);
    if (causal) {
      scores = scores.masked_fill(at::ones({seq, seq}, at::kBool).tril().logical_not(),
                                  -std::numeric_limits<float>::infinity());
    }
    const bool global = m.global_every > 0 && (layer + 1) % m.global_every == 0;
    if (m.window > 0 && !global) {
      scores = scores.masked_fill(at::ones({seq, seq}, at::kBool).tril(-m.window),
                                  -std::numeric_limits<float>::infinity());
    }
    return at::einsum("bhqk,bkhd->bqhd", {at::softmax(scores, -1), v});
  }
  /// x (B, T, heads, d): the pair (x[i], x[i + d / 2]) as a complex number, times e^(i t theta_i).
  Tensor rotated(const Tensor& x) const {
    const std::int64_t pairs = x.size(3) / 2;
    const Tensor index = at::arange(pairs, at::kDouble);
    const Tensor frequency = at::pow(m.rope_theta, index * (-1.0 / double(pairs)));
    const Tensor angle = at::outer(at::arange(x.size(1), at::kDouble), frequency);
    const Tensor c = angle.cos().to(at::kFloat).unsqueeze(1);
    const Tensor s = angle.sin().to(at::kFloat).unsqueeze(1);
    const Tensor a = x.slice(3, 0, pairs), b = x.slice(3, pairs);
    return at::cat({a * c - b * s, a * s + b * c}, 3);
  }
  /// x (.., H) through a weight (out.., H), and a bias (out..) where there is one; the out.. become
  /// one dimension.
  Tensor linear(const Tensor& x, const std::string& name) const {
    if (w.count(name + ".bias") > 0) return affine(x, name);
    return at::matmul(x, get(name + ".weight").reshape({-1, x.size(-1)}).t());
  }
  /// x (.., H) through a weight (out.., H) and a bias (out..); the out.. become one dimension.
  Tensor affine(const Tensor& x, const std::string& name) const {
    const Tensor weight = get(name + ".weight"), bias = get(name + ".bias");
    return at::matmul(x, weight.reshape({-1, x.size(-1)}).t()) + bias.reshape({-1});
  }
  /// x (.., heads x head_dim) through a weight (H, heads, head_dim) and a bias (H).
  Tensor merge(const Tensor& x, const std::string& name) const {
    const Tensor weight = get(name + ".weight");
    return at::matmul(x, weight.reshape({weight.size(0), -1}).t()) + get(name + ".bias");
  }
  /// (B, T, H) -> (B, T, heads, head_dim).
  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), x.size(1), m.heads, m.head_dim});
  }
};

Tensor gelu_tanh(const Tensor& x) {
  return 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
}
Tensor gelu_erf(const Tensor& x) { return 0.5 * x * (1 + at::erf(x / std::sqrt(2.0))); }

Tensor gpt_logits(const Net& n, const Tensor& tokens) {
  const model::ModelSpec& m = n.m;
  const Tensor& wte = n.get("transformer.wte.weight");
  Tensor x = wte.index({tokens}) + n.get("transformer.wpe.weight").slice(0, 0, tokens.size(1));
  x = n.drop(x, "embedding", -1);
  for (int i = 0; i < m.layers; ++i) {
    const std::string h = "transformer.h." + std::to_string(i) + ".";
    const Tensor qkv = n.affine(n.norm(x, h + "ln_1"), h + "attn.c_attn");
    const auto part = [&](int p) { return n.heads(qkv.chunk(3, -1)[p]); };
    const Tensor a = n.attention(part(0), part(1), part(2), true, i).flatten(2);
    x = x + n.drop(n.merge(a, h + "attn.c_proj"), "attention", i);
    const Tensor f = gelu_tanh(n.affine(n.norm(x, h + "ln_2"), h + "mlp.c_fc"));
    x = x + n.drop(n.affine(f, h + "mlp.c_proj"), "mlp", i);
  }
  return at::matmul(n.norm(x, "transformer.ln_f"), (m.tied ? wte : n.get("lm_head.weight")).t());
}

Tensor bert_logits(const Net& n, const Tensor& tokens) {
  const model::ModelSpec& m = n.m;
  const Tensor& table = n.get("bert.embeddings.word_embeddings.weight");
  Tensor x = table.index({tokens}) +
             n.get("bert.embeddings.position_embeddings.weight").slice(0, 0, tokens.size(1)) +
             n.get("bert.embeddings.token_type_embeddings.weight").index({at::zeros_like(tokens)});
  x = n.drop(n.norm(x, "bert.embeddings.LayerNorm"), "embedding", -1);
  for (int i = 0; i < m.layers; ++i) {
    const std::string l = "bert.encoder.layer." + std::to_string(i) + ".";
    const auto part = [&](const char* p) {
      return n.heads(n.affine(x, l + "attention.self." + p));
    };
    const Tensor a = n.attention(part("query"), part("key"), part("value"), false, i).flatten(2);
    x = n.norm(x + n.drop(n.merge(a, l + "attention.output.dense"), "attention", i),
               l + "attention.output.LayerNorm");
    const Tensor f = gelu_erf(n.affine(x, l + "intermediate.dense"));
    x = n.norm(x + n.drop(n.affine(f, l + "output.dense"), "mlp", i), l + "output.LayerNorm");
  }
  x = n.norm(gelu_erf(n.affine(x, "cls.predictions.transform.dense")),
             "cls.predictions.transform.LayerNorm");
  return at::matmul(x, (m.tied ? table : n.get("cls.predictions.decoder.weight")).t()) +
         n.get("cls.predictions.bias");
}

/// names: 0: LLaMA's of its three matrices, 1: Mixtral's.
Tensor gated(const Net& n, const Tensor& x, const std::string& prefix, int names) {
  const Tensor gate = n.linear(x, prefix + (names == 1 ? ".w1" : ".gate_proj"));
  const Tensor active =
      n.m.activation == model::Activation::geglu ? gelu_tanh(gate) : gate * at::sigmoid(gate);
  return n.linear(active * n.linear(x, prefix + (names == 1 ? ".w3" : ".up_proj")),
                  prefix + (names == 1 ? ".w2" : ".down_proj"));
}

/// Every expert computes all tokens; weights of 0 leave out those that did not choose it. Adds the
/// loss that balances experts to `balance`, whose mean over tokens is 1 where experts are equal.
Tensor experts(const Net& n, const Tensor& x, const std::string& layer, Tensor& balance) {
  const model::ModelSpec& m = n.m;
  const std::string mlp = layer + (m.mixtral_names ? "block_sparse_moe" : "mlp");
  const Tensor p = at::softmax(n.linear(x, mlp + ".gate"), -1);
  const Tensor least = std::get<0>(p.sort(-1, true)).select(-1, m.experts_per_token - 1);
  const Tensor chosen = p.ge(least.unsqueeze(-1)).to(at::kFloat).detach();
  Tensor weights = p * chosen;
  if (m.norm_topk) weights = weights / weights.sum(-1, true);
  Tensor sum = at::zeros_like(x);
  for (int e = 0; e < m.experts; ++e)
    sum = sum + weights.select(-1, e).unsqueeze(-1) *
                    gated(n, x, mlp + ".experts." + std::to_string(e), m.mixtral_names ? 1 : 0);
  const auto tokens = double(x.size(0) * x.size(1));
  const Tensor share = chosen.flatten(0, 1).sum(0) / (tokens * m.experts_per_token);
  const Tensor mean = p.flatten(0, 1).mean(0);
  balance = balance + m.router_aux_loss * m.experts * (share * mean).sum() * tokens;
  return sum;
}

/// `balance`: what is added to the sum of the tokens' losses.
Tensor llama_logits(const Net& n, const Tensor& tokens, Tensor& balance) {
  const model::ModelSpec& m = n.m;
  const Tensor& table = n.get("model.embed_tokens.weight");
  Tensor x = table.index({tokens});
  if (m.scaled_embedding) x = x * std::sqrt(double(m.hidden));
  for (int i = 0; i < m.layers; ++i) {
    const std::string l = "model.layers." + std::to_string(i) + ".";
    const Tensor y = n.rms(x, l + "input_layernorm");
    const auto part = [&](const char* p, int heads) {
      const Tensor flat = n.linear(y, l + "self_attn." + p);
      return flat.reshape({x.size(0), x.size(1), heads, m.head_dim});
    };
    const auto normed = [&](const Tensor& t, const char* p) {
      return m.qk_norm ? n.rms(t, l + "self_attn." + p) : t;
    };
    const auto for_each_query = [&](const Tensor& t) {
      return at::repeat_interleave(t, m.heads / m.kv_heads, 2);
    };
    const Tensor a =
        n.attention(n.rotated(normed(part("q_proj", m.heads), "q_norm")),
                    for_each_query(n.rotated(normed(part("k_proj", m.kv_heads), "k_norm"))),
                    for_each_query(part("v_proj", m.kv_heads)), true, i);
    const Tensor out = n.get(l + "self_attn.o_proj.weight");
    x = x + n.added(at::matmul(a.flatten(2), out.reshape({out.size(0), -1}).t()),
                    l + "post_attention_layernorm");
    const Tensor z =
        n.rms(x, l + (m.output_norm ? "pre_feedforward_layernorm" : "post_attention_layernorm"));
    const Tensor returned = m.experts > 0 ? experts(n, z, l, balance) : gated(n, z, l + "mlp", 0);
    x = x + n.added(returned, l + "post_feedforward_layernorm");
  }
  const Tensor logits =
      at::matmul(n.rms(x, "model.norm"), (m.tied ? table : n.get("lm_head.weight")).t());
  return Net::capped(logits, m.logit_cap);
}

Tensor logits(const model::ModelSpec& model, const Weights& weights, const Tensor& tokens,
              const Masks& masks, Tensor& balance) {
  const Net net{model, weights, masks};
  switch (model.family) {
    case model::Family::gpt:
      return gpt_logits(net, tokens);
    case model::Family::bert:
      return bert_logits(net, tokens);
    case model::Family::llama:
      return llama_logits(net, tokens, balance);
  }
  return {};
}

}  // namespace

Tensor loss_sum(const model::ModelSpec& model, const Weights& weights, const Tensor& tokens,
                const Tensor& labels, const Masks& masks, Tensor* balance) {
  Tensor none = at::zeros({});
  const Tensor all = logits(model, weights, tokens, masks, balance == nullptr ? none : *balance);
  const Tensor log_p = at::log_softmax(all.slice(2, 0, model.vocab).reshape({-1, model.vocab}), 1);
  const Tensor flat = labels.reshape({-1});
  const Tensor counted = flat.ge(0).nonzero().reshape({-1});
  return -log_p.index_select(0, counted)
              .gather(1, flat.index_select(0, counted).unsqueeze(1))
              .sum();
}

Weights gradients(const model::ModelSpec& model, const Weights& weights, const Tensor& tokens,
                  const Tensor& labels, double loss_scale, const Masks& masks, double* loss) {
  Weights leaves;
  for (const auto& [name, tensor] : weights) {
    leaves[name] = tensor.detach().clone().set_requires_grad(true);
  }
  Tensor balance = at::zeros({});
  const Tensor scaled = loss_sum(model, leaves, tokens, labels, masks, &balance) * loss_scale;
  if (loss != nullptr) *loss = scaled.item<double>();
  torch::autograd::backward({scaled + balance * loss_scale}, {});
  Weights result;
  for (const auto& [name, leaf] : leaves) {
    result[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return result;
}

}  // namespace rehearse::reference
