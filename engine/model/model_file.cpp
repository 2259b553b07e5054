#include "engine/model/model_file.h"

#include <fmt/format.h>

#include "engine/base/choose.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/refusal.h"
#include "engine/model/check.h"
#include "engine/model/config_json.h"

namespace rehearse::model {
namespace {

/// Above 0, at most `most`.
Limits open(double most) { return {.least = 0, .most = most, .open = true}; }

ModelSpec read_model(const Config& file, const std::string& name) {
  const Limits whole = between(1, 1 << 30);
  const auto count = [&](const char* key) {
    return static_cast<int>(file.integer(key, std::nullopt, between(1, most_of(key))));
  };
  // An absent key reads as 0, which means build_model's default.
  const auto maybe = [&](const char* key) {
    return static_cast<int>(file.maybe_integer(key, between(1, most_of(key))).value_or(0));
  };
  check_kind(file, FileKind::model);
  ModelSpec m;
  m.name = name;
  const std::string family = file.text("family", std::nullopt, {"gpt", "bert", "llama"});
  m.family = family == "gpt" ? Family::gpt : family == "bert" ? Family::bert : Family::llama;
  m.layers = count("layers");
  m.hidden = count("hidden");
  m.heads = count("heads");
  m.kv_heads = maybe("kv_heads");
  m.head_dim = maybe("head_dim");
  m.ffn = maybe("ffn");
  m.vocab = count("vocab");
  m.padded_vocab = maybe("padded_vocab");
  m.seq_len = count("seq_len");
  m.max_positions = maybe("max_positions");
  m.outputs = maybe("outputs");
  m.dropout = file.number("dropout", 0.0, between(0, 1));
  m.tied = file.flag("tied", true);
  m.qkv_bias = file.flag("qkv_bias", false);
  m.qk_norm = file.flag("qk_norm", false);
  m.fused_weights = file.flag("fused_weights", false);
  m.experts = maybe("experts");
  m.experts_per_token = maybe("experts_per_token");
  m.norm_topk = file.flag("norm_topk", true);
  m.router_aux_loss = file.number("router_aux_loss", 0.0, between(0, 1e3));
  m.mixtral_names = file.flag("mixtral_names", false);
  m.activation = choose(file, "activation", m.activation);
  m.norm_offset = file.flag("norm_offset", false);
  m.output_norm = file.flag("output_norm", false);
  m.scaled_embedding = file.flag("scaled_embedding", false);
  m.query_scalar = file.number("query_scalar", 0.0, between(0, 1e6));
  m.attention_cap = file.number("attention_cap", 0.0, between(0, 1e6));
  m.logit_cap = file.number("logit_cap", 0.0, between(0, 1e6));
  m.window = maybe("window");
  m.global_every = maybe("global_every");
  m.norm_epsilon = file.number("norm_epsilon", default_epsilon(m.family), open(1));
  m.rope_theta = file.number("rope_theta", m.rope_theta, between(1, 1e9));
  m.local_rope_theta = file.number("local_rope_theta", 0.0, between(0, 1e9));
  const Config scaling = file.section("rope_scaling");
  m.rope_scaling.type = choose(scaling, "type", m.rope_scaling.type);
  if (m.rope_scaling.type == RopeScaling::Type::longrope)
    throw scaling.error("type",
                        "longrope is read from a Hugging Face config.json alone, which has "
                        "its list of numbers; one of llama3, yarn, linear");
  const bool yarn = m.rope_scaling.type == RopeScaling::Type::yarn;
  m.rope_scaling.factor = scaling.number("factor", 1.0, between(1, 1e6));
  m.rope_scaling.low = scaling.number("low", 1.0, open(1e6));
  m.rope_scaling.high = scaling.number("high", yarn ? 32.0 : 4.0, open(1e6));
  m.rope_scaling.attention = scaling.number("attention", 0.0, between(0, 1e3));
  m.rope_scaling.positions =
      static_cast<int>(scaling.integer("positions", m.rope_scaling.positions, whole));
  file.finish();
  return m;
}

void change(ModelSpec& m, const std::string& key, int value) {
  if (key == "layers") m.layers = value;
  if (key == "hidden") m.hidden = value, m.head_dim = 0, m.ffn = 0;
  if (key == "heads") m.heads = value, m.head_dim = 0, m.kv_heads = 0;
  if (key == "kv_heads") m.kv_heads = value;
  if (key == "head_dim") m.head_dim = value;
  if (key == "ffn") m.ffn = value;
  if (key == "vocab") m.vocab = value, m.padded_vocab = 0;
  if (key == "padded_vocab") m.padded_vocab = value;
  if (key == "outputs") m.outputs = value;
  if (key == "max_positions") m.max_positions = value;
  if (key == "experts") m.experts = value;
  if (key == "experts" && value == 0)
    m.experts_per_token = 0, m.router_aux_loss = 0, m.norm_topk = true, m.mixtral_names = false;
  if (key == "experts_per_token") m.experts_per_token = value;
}

/// "gpt2-124m+layers=24,dropout=0.1"
void name_change(ModelSpec& m, const std::string& key, double value) {
  m.name += fmt::format("{}{}={}", m.name.find('+') == std::string::npos ? "+" : ",", key, value);
}

}  // namespace

ModelChanges read_changes(const Config& section) {
  ModelChanges out;
  // In this order, so that a stated size replaces the default that a change before it asks for.
  for (const char* key :
       {"layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "padded_vocab",
        "max_positions", "outputs", "experts", "experts_per_token"})
    if (const auto value = section.maybe_integer(
            key, between(key == std::string_view("experts") ? 0 : 1, most_of(key))))
      out.sizes.emplace_back(key, static_cast<int>(*value));
  for (const auto& [key, most] : {std::pair{"dropout", 1.0}, {"router_aux_loss", 1e3}}) {
    const double value = section.number(key, 0.0, between(0, most));
    if (section.has(key)) out.numbers.emplace_back(key, value);
  }
  return out;
}

ModelSpec load_model(const std::string& name_or_path, int seq_len) {
  return load_model(name_or_path, seq_len, {});
}

ModelSpec load_model(const std::string& name_or_path, int seq_len, const ModelChanges& changes) {
  std::filesystem::path path = name_or_path;
  if (std::filesystem::is_regular_file(path / "config.json")) path /= "config.json";
  const bool json = path.extension() == ".json";
  if (!json) path = find_data("models", name_or_path, "model");
  ModelSpec m = json ? read_config_json(path.string())
                     : read_model(Config::load(path.string()), path.stem().string());
  for (const auto& [key, value] : changes.sizes) {
    change(m, key, value);
    name_change(m, key, value);
  }
  for (const auto& [key, value] : changes.numbers) {
    (key == "dropout" ? m.dropout : m.router_aux_loss) = value;
    name_change(m, key, value);
  }
  if (m.max_positions == 0) m.max_positions = m.seq_len;
  if (seq_len > 0) m.seq_len = seq_len;
  try {
    return build_model(m);
  } catch (const Refused& refused) {
    throw Refused({refused.refusal.key, path.string() + ": " + refused.what()});
  }
}

std::vector<std::string> known_models() { return data_names("models"); }

std::vector<Config::Key> model_keys() {
  const Config file = Config::parse(
      "family = \"gpt\"\nlayers = 1\nhidden = 1\nheads = 1\nvocab = 1\nseq_len = 1\n", "keys");
  read_model(file, "any");
  return file.keys();
}

}  // namespace rehearse::model
