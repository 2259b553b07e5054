#include "engine/model/check.h"

#include <algorithm>
#include <utility>

#include "engine/base/names.h"
#include "engine/base/numbers/divisors.h"

namespace rehearse::model {
namespace {

/// Keys that llama alone has and that change its layers.
void check_layers(const ModelSpec& m) {
  const bool llama = m.family == Family::llama;
  require(m.window >= 0 && m.window <= 1 << 24, m, "window", m.window,
          "must be at least 0 and at most 16777216");
  require(llama || m.window == 0, m, "window", m.window, "must be 0: only llama has a window");
  require(m.global_every >= 0 && m.global_every <= 10'000, m, "global_every", m.global_every,
          "must be at least 0 and at most 10000");
  require(m.global_every == 0 || m.window > 0, m, "global_every", m.global_every,
          "says which layers have no window, so window must be stated");
  for (const auto& [key, value] : {std::pair{"qk_norm", m.qk_norm},
                                   {"fused_weights", m.fused_weights},
                                   {"mixtral_names", m.mixtral_names},
                                   {"norm_offset", m.norm_offset},
                                   {"output_norm", m.output_norm},
                                   {"scaled_embedding", m.scaled_embedding}})
    require(llama || !value, m, key, value, "is llama's alone");
  require(llama || m.activation == Activation::swiglu, m, "activation", name_of(m.activation),
          "is llama's alone: the other families have GELU");
  for (const auto& [key, value] : {std::pair{"query_scalar", m.query_scalar},
                                   {"attention_cap", m.attention_cap},
                                   {"logit_cap", m.logit_cap}}) {
    require(value == 0 || (value >= 1e-3 && value <= 1e6), m, key, value,
            "must be at least 0.001 and at most 1e6, or 0: the default");
    require(llama || value == 0, m, key, value, "is llama's alone");
  }
}

/// Experts, which llama alone has.
void check_experts(const ModelSpec& m) {
  require(m.experts >= 0 && m.experts <= most_of("experts"), m, "experts", m.experts,
          fmt::format("must be at least 0 and at most {}", most_of("experts")));
  require(m.family == Family::llama || m.experts == 0, m, "experts", m.experts,
          "is llama's alone: the feed-forward layers of the other families are for all tokens");
  require(m.router_aux_loss >= 0 && m.router_aux_loss <= 1e3, m, "router_aux_loss",
          m.router_aux_loss, "must be at least 0 and at most 1000");
  if (m.experts == 0) {
    const char* const none = "is of a model with experts, so experts must be stated";
    require(m.experts_per_token == 0, m, "experts_per_token", m.experts_per_token, none);
    require(m.router_aux_loss == 0, m, "router_aux_loss", m.router_aux_loss, none);
    require(m.norm_topk, m, "norm_topk", m.norm_topk, none);
    require(!m.mixtral_names, m, "mixtral_names", m.mixtral_names, none);
    return;
  }
  require(m.experts_per_token >= 1 && m.experts_per_token <= m.experts, m, "experts_per_token",
          m.experts_per_token,
          fmt::format("must be at least 1 and at most experts = {}", m.experts));
  // Each expert of each layer has tensors of its own, and bytes of all of them are counted.
  constexpr int most_in_all = 1 << 18;
  require(m.layers <= most_in_all / m.experts, m, "experts", m.experts,
          fmt::format("times layers = {} must be at most {}", m.layers, most_in_all));
  const double in_all = 3.0 * m.layers * m.experts * m.ffn * m.hidden;
  require(in_all <= 1e17, m, "experts", m.experts,
          fmt::format("of {} x {} in {} layers have {:.1e} parameters; at most 1e17", m.hidden,
                      m.ffn, m.layers, in_all));
  require(!m.output_norm, m, "experts", m.experts,
          "must be 0 with output_norm: no published model has both");
  require(!m.fused_weights, m, "experts", m.experts,
          "must be 0 with fused_weights: no published model has both");
}

/// Rotary positions, which llama alone has.
void check_positions(const ModelSpec& m) {
  const bool llama = m.family == Family::llama;
  require(m.rope_theta >= 1 && m.rope_theta <= 1e9, m, "rope_theta", m.rope_theta,
          "must be at least 1 and at most 1e9");
  const double local = m.local_rope_theta;
  require(local == 0 || (local >= 1 && local <= 1e9), m, "local_rope_theta", local,
          "must be at least 1 and at most 1e9, or 0: rope_theta");
  require(local == 0 || m.window > 0, m, "local_rope_theta", local,
          "is of layers with a window, so window must be stated");
  const RopeScaling& scaling = m.rope_scaling;
  require(llama || (m.rope_theta == ModelSpec{}.rope_theta && scaling == RopeScaling{}), m,
          "rope_theta", m.rope_theta, "is of rotary positions, which only llama has");
  require(llama || !m.qkv_bias, m, "qkv_bias", m.qkv_bias,
          "is llama's alone: the other families have all biases");
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

}  // namespace

int most_of(std::string_view key) {
  for (const auto& [known, most] : {std::pair{"layers", 10'000},
                                    {"hidden", 1 << 20},
                                    {"heads", 1 << 20},
                                    {"kv_heads", 1 << 20},
                                    {"head_dim", 1 << 16},
                                    {"ffn", 1 << 23},
                                    {"vocab", 1 << 24},
                                    {"padded_vocab", 1 << 25},
                                    {"outputs", 1 << 20},
                                    {"experts", 4096},
                                    {"experts_per_token", 4096}})
    if (key == known) return most;
  return 1 << 24;
}

void check(const ModelSpec& m) {
  for (const auto& [key, value] : {std::pair{"layers", m.layers},
                                   {"hidden", m.hidden},
                                   {"heads", m.heads},
                                   {"head_dim", m.head_dim},
                                   {"ffn", m.ffn},
                                   {"vocab", m.vocab},
                                   {"padded_vocab", m.padded_vocab},
                                   {"max_positions", m.max_positions},
                                   {"seq_len", m.seq_len}}) {
    require(value >= 1, m, key, value, "must be at least 1");
    require(value <= most_of(key), m, key, value, fmt::format("must be at most {}", most_of(key)));
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
  require(m.family == Family::llama || m.seq_len <= m.max_positions, m, "seq_len", m.seq_len,
          fmt::format("is beyond max_positions = {}, the rows of the position table; at most {}",
                      m.max_positions, m.max_positions));
  require(m.outputs >= 0 && m.outputs <= most_of("outputs"), m, "outputs", m.outputs,
          fmt::format("must be at least 0 and at most {}", most_of("outputs")));
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
  check_layers(m);
  check_experts(m);
  check_positions(m);
}

}  // namespace rehearse::model
