#include "engine/job/identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/base/fnv.h"
#include "engine/base/names.h"

namespace rehearse::job {
namespace {

const char* family_of(model::Family family) {
  return family == model::Family::gpt ? "gpt" : family == model::Family::bert ? "bert" : "llama";
}

/// Keys that were added later. At its default a key adds nothing, so older hashes stay valid.
std::string rare_keys(const model::ModelSpec& m) {
  std::string text;
  if (m.outputs > 0) text += fmt::format(" {}", m.outputs);
  if (m.norm_epsilon != default_epsilon(m.family)) text += fmt::format(" norm {}", m.norm_epsilon);
  if (query_width(m) != m.hidden) text += fmt::format(" head {}", m.head_dim);
  if (m.qkv_bias) text += " qkv bias";
  if (m.qk_norm) text += " qk norm";
  if (m.window > 0) text += fmt::format(" window {}", m.window);
  if (m.global_every > 0) text += fmt::format(" global {}", m.global_every);
  if (m.activation != model::Activation::swiglu) text += fmt::format(" {}", name_of(m.activation));
  if (m.norm_offset) text += " norm offset";
  if (m.output_norm) text += " output norm";
  if (m.experts > 0)
    text += fmt::format(" experts {} {} {}", m.experts, m.experts_per_token, m.norm_topk);
  if (m.mixtral_names) text += " mixtral names";
  if (m.router_aux_loss > 0) text += fmt::format(" balance {}", m.router_aux_loss);
  if (m.scaled_embedding) text += " scaled embedding";
  for (const auto& [key, value] : {std::pair{"query", m.query_scalar},
                                   {"attention cap", m.attention_cap},
                                   {"logit cap", m.logit_cap}})
    if (value > 0) text += fmt::format(" {} {}", key, value);
  if (m.rope_theta != model::ModelSpec{}.rope_theta) text += fmt::format(" rope {}", m.rope_theta);
  if (m.local_rope_theta > 0) text += fmt::format(" local rope {}", m.local_rope_theta);
  if (m.rope_scaling != model::RopeScaling{})
    text += fmt::format(" {} {} {} {}", m.rope_scaling.factor, m.rope_scaling.low,
                        m.rope_scaling.high, m.rope_scaling.positions);
  if (m.rope_scaling.type != model::RopeScaling::Type::llama3)
    text +=
        fmt::format(" {} {} {} {}", name_of(m.rope_scaling.type), m.rope_scaling.attention,
                    fmt::join(m.rope_scaling.shorter, ","), fmt::join(m.rope_scaling.longer, ","));
  if (m.software != software::Software{}) text += " " + hash_text(software::hash_of(m.software));
  return text;
}

}  // namespace

std::uint64_t hash_of(const model::ModelSpec& m) {
  // build_model derives groups and segments from these fields.
  return fnv1a(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}{}", family_of(m.family), m.layers,
                           m.hidden, m.heads, m.ffn, m.vocab, m.seq_len, m.max_positions,
                           m.padded_vocab, m.kv_heads, m.dropout, m.tied, rare_keys(m)));
}

std::uint64_t hash_of(const costs::Profile& profile) { return fnv1a(to_json(profile)); }

std::string describe(const model::ModelSpec& m) {
  return fmt::format(
      "{}: {}, {} layers, hidden {}, {} heads{}, {}feed-forward {}, vocabulary {}, {} tokens{}",
      m.name, family_of(m.family), m.layers, m.hidden, m.heads,
      query_width(m) != m.hidden ? fmt::format(" of {}", m.head_dim) : "",
      m.experts > 0 ? fmt::format("{} experts, {} a token, each ", m.experts, m.experts_per_token)
                    : "",
      m.ffn, m.vocab, m.seq_len, m.dropout > 0 ? fmt::format(", dropout {}", m.dropout) : "");
}

std::string describe(const cluster::Cluster& cluster) {
  std::vector<int> count(cluster.kinds().size(), 0);
  for (const cluster::Device& device : cluster.devices()) ++count[device.kind];
  std::vector<std::string> kinds;
  for (std::size_t k = 0; k < count.size(); ++k)
    if (count[k] > 0) kinds.push_back(fmt::format("{} x {}", count[k], cluster.kinds()[k].name));
  return fmt::format("{}: {} node{}, {}", cluster.name(), cluster.nodes(),
                     cluster.nodes() == 1 ? "" : "s", fmt::join(kinds, ", "));
}

}  // namespace rehearse::job
