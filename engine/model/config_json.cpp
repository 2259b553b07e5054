// Keys as in transformers' GPT2Config, BertConfig, LlamaConfig, MistralConfig, MixtralConfig,
// Qwen2Config, Qwen3Config, Qwen3MoeConfig, Phi3Config, GemmaConfig, Gemma2Config and
// Gemma3TextConfig, and the last two's parts of models that also see images (Gemma3Config,
// Mistral3Config).
#include "engine/model/config_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "engine/base/files/files.h"
#include "engine/base/files/json_reader.h"
#include "engine/base/files/json_text.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/terms.h"

namespace rehearse::model {
namespace {

using Json = JsonReader::Json;

/// An object of the file in which a key that is null counts as absent.
class Keys {
 public:
  Keys(const Json& json, const std::string& where) : json_(json), reader_(json, where) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  bool stated(const char* key) const { return json_.contains(key); }
  const Json& at(const char* key) { return reader_.at(key); }
  int count(const char* key) { return reader_.integer<int>(key, 1, 1 << 30); }
  int count(const char* key, int fallback) { return has(key) ? count(key) : fallback; }
  double number(const char* key) { return reader_.number(key); }
  double number(const char* key, double fallback) {
    return has(key) ? reader_.number(key) : fallback;
  }
  bool truth(const char* key, bool fallback) { return has(key) ? reader_.truth(key) : fallback; }
  std::string text(const char* key, const std::string& fallback) {
    return has(key) ? reader_.text(key) : fallback;
  }
  std::vector<double> numbers(const char* key) {
    const Json& list = reader_.at(key);
    if (!list.is_array() || !std::ranges::all_of(list, [](const Json& x) { return x.is_number(); }))
      fail(fmt::format("\"{}\" must be a list of numbers", key));
    return list.get<std::vector<double>>();
  }
  /// Refuses any other value than those that the blocks compute; the first is the key's default.
  void must_be(const char* key, const std::vector<Json>& computed) {
    if (!has(key)) return;
    const Json& value = json_.at(key);
    if (std::find(computed.begin(), computed.end(), value) != computed.end()) return;
    std::vector<std::string> texts;
    for (const Json& one : computed) texts.push_back(one.dump());
    reader_.fail(fmt::format("\"{}\" = {}: must be {}: nothing else is computed here", key,
                             value.dump(), fmt::join(texts, " or ")));
  }
  [[noreturn]] void fail(const std::string& what) const { reader_.fail(what); }

 private:
  const Json& json_;
  JsonReader reader_;
};

void read_gpt2(Keys& file, ModelSpec& m) {
  m.family = Family::gpt;
  m.vocab = file.count("vocab_size");
  m.layers = file.count("n_layer");
  m.hidden = file.count("n_embd");
  m.heads = file.count("n_head");
  m.ffn = file.count("n_inner", 0);
  m.max_positions = file.count("n_positions");
  m.tied = file.truth("tie_word_embeddings", true);
  m.norm_epsilon = file.number("layer_norm_epsilon", 0);
  m.dropout = file.number("resid_pdrop", 0.1);
  if (file.number("embd_pdrop", 0.1) != m.dropout)
    file.fail(
        fmt::format("\"embd_pdrop\" = {}: must equal \"resid_pdrop\" = {}: a model has one "
                    "dropout here",
                    file.number("embd_pdrop", 0.1), m.dropout));
  file.must_be("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  file.must_be("scale_attn_weights", {true});
  file.must_be("scale_attn_by_inverse_layer_idx", {false});
  file.must_be("add_cross_attention", {false});
}

void read_bert(Keys& file, ModelSpec& m) {
  m.family = Family::bert;
  m.vocab = file.count("vocab_size");
  m.layers = file.count("num_hidden_layers");
  m.hidden = file.count("hidden_size");
  m.heads = file.count("num_attention_heads");
  m.ffn = file.count("intermediate_size");
  m.max_positions = file.count("max_position_embeddings");
  m.tied = file.truth("tie_word_embeddings", true);
  m.norm_epsilon = file.number("layer_norm_eps", 0);
  m.dropout = file.number("hidden_dropout_prob", 0.1);
  file.must_be("hidden_act", {"gelu"});
  file.must_be("position_embedding_type", {"absolute"});
  file.must_be("type_vocab_size", {2});
  file.must_be("is_decoder", {false});
  file.must_be("add_cross_attention", {false});
}

/// 0.1 weight ln(factor) + 1: yarn's factor of queries and keys.
double yarn_attention(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

/// How the frequencies are scaled. `longest`: max_position_embeddings. `first`: as in
/// read_frequencies.
void read_scaling(Keys& rope, const std::string& name, int longest, int first, RopeScaling& out) {
  using Type = RopeScaling::Type;
  out.type = name == "su" ? Type::longrope : *from_name<Type>(name);
  if (out.type != Type::linear)
    out.positions = first > 0 ? first : rope.count("original_max_position_embeddings", longest);
  const bool by_length = out.type == Type::yarn || out.type == Type::longrope;
  if (rope.has("factor") || !by_length)
    out.factor = rope.number("factor");
  else
    out.factor = std::max(1.0, double(longest) / out.positions);
  if (by_length) out.attention = rope.number("attention_factor", 0);
  if (out.type == Type::llama3) {
    out.low = rope.number("low_freq_factor", 0);
    out.high = rope.number("high_freq_factor", 0);
  }
  if (out.type == Type::yarn) {
    rope.must_be("truncate", {true});
    out.low = rope.number("beta_slow", 1);
    out.high = rope.number("beta_fast", 32);
    const double some = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
    if (out.attention == 0 && some != 0 && all != 0)
      out.attention = yarn_attention(out.factor, some) / yarn_attention(out.factor, all);
  }
  if (out.type == Type::longrope) {
    out.shorter = rope.numbers("short_factor");
    out.longer = rope.numbers("long_factor");
  }
}

/// The keys of an object in the file.
Keys keys_inside(Keys& file, const std::string& where, const char* key) {
  return {file.at(key), fmt::format("{}: {}", where, key)};
}

/// The base of the frequencies, and how they are scaled. `first`: tokens of the sequences before
/// the stretch, as the file states them beside the rotary keys; 0: it does not.
void read_frequencies(Keys& rope, bool phi, int first, ModelSpec& m) {
  m.rope_theta = rope.number("rope_theta", m.rope_theta);
  const char* const name = rope.has("rope_type") ? "rope_type" : "type";
  rope.must_be(name, {"default", "llama3", "yarn", "linear", "longrope", "su"});
  rope.must_be("partial_rotary_factor", {1.0});
  std::string type = rope.text(name, "default");
  if (phi && type == "yarn") type = "longrope";  // its name in the first files of Phi 3
  if (type != "default") read_scaling(rope, type, m.seq_len, first, m.rope_scaling);
}

/// Rotary positions: in one object "rope_parameters" since transformers 5, in two keys before. An
/// object may have one for layers with a window and one for the others.
void read_rotary(Keys& file, const std::string& where, bool phi, ModelSpec& m) {
  m.rope_theta = file.number("rope_theta", m.rope_theta);
  if (file.has("rope_local_base_freq")) m.local_rope_theta = file.number("rope_local_base_freq");
  const int first = file.count("original_max_position_embeddings", phi ? 4096 : 0);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!file.has(key)) continue;
    Keys rope = keys_inside(file, where, key);
    if (!rope.has("full_attention")) {
      read_frequencies(rope, phi, first, m);
      continue;
    }
    const std::string inside = fmt::format("{}: {}", where, key);
    Keys global = keys_inside(rope, inside, "full_attention");
    read_frequencies(global, phi, first, m);
    if (!rope.has("sliding_attention")) continue;
    Keys local = keys_inside(rope, inside, "sliding_attention");
    local.must_be("rope_type", {"default"});
    m.local_rope_theta = local.number("rope_theta", m.local_rope_theta);
  }
  file.must_be("partial_rotary_factor", {1.0});
}

/// Which layers have a window: layer_types lists them since transformers 4.53. Before, of `every`
/// layers the last one had none.
void read_layer_types(Keys& file, int every, ModelSpec& m) {
  m.window = file.has("sliding_window") || !file.stated("sliding_window")
                 ? file.count("sliding_window", 4096)
                 : 0;
  m.global_every = m.window > 0 ? every : 0;
  if (!file.has("layer_types")) return;
  const Json& types = file.at("layer_types");
  if (!types.is_array() || types.size() != static_cast<std::size_t>(m.layers))
    file.fail(
        fmt::format("\"layer_types\" must list one type for each of the {} layers", m.layers));
  const Json global = "full_attention", sliding = "sliding_attention";
  if (std::count(types.begin(), types.end(), global) == m.layers) {
    m.window = m.global_every = 0;
    return;
  }
  if (m.window == 0) file.fail("\"layer_types\": layers with a window need \"sliding_window\"");
  const auto first = std::find(types.begin(), types.end(), global);
  m.global_every = first == types.end() ? 0 : static_cast<int>(first - types.begin()) + 1;
  for (int layer = 0; layer < m.layers; ++layer) {
    const bool last = m.global_every > 0 && layer % m.global_every == m.global_every - 1;
    if (types[static_cast<std::size_t>(layer)] != (last ? global : sliding))
      file.fail(
          "\"layer_types\": must be sliding_attention, or of so many layers the last one "
          "full_attention: nothing else is computed here");
  }
}

/// What all versions of Gemma have.
void read_gemma(Keys& file, bool first, ModelSpec& m) {
  m.activation = Activation::geglu;
  m.norm_offset = m.scaled_embedding = true;
  m.tied = file.truth("tie_word_embeddings", true);
  file.must_be("hidden_activation", {"gelu_pytorch_tanh"});
  // The first files of Gemma say "gelu" and mean the same.
  file.must_be("hidden_act", first ? std::vector<Json>{"gelu_pytorch_tanh", "gelu"}
                                   : std::vector<Json>{"gelu_pytorch_tanh"});
  file.must_be("use_bidirectional_attention", {false});
}

/// What Gemma 2 and 3 have.
void read_gemma2(Keys& file, bool third, ModelSpec& m) {
  m.output_norm = true;
  m.qk_norm = third;
  m.query_scalar = file.number("query_pre_attn_scalar", 256);
  // A cap that is null is none.
  const auto cap = [&](const char* key, double fallback) {
    return file.stated(key) ? file.number(key, 0) : fallback;
  };
  m.attention_cap = cap("attn_logit_softcapping", third ? 0 : 50);
  m.logit_cap = cap("final_logit_softcapping", third ? 0 : 30);
  read_layer_types(file, third ? file.count("sliding_window_pattern", 6) : 2, m);
  if (m.window == 0) m.local_rope_theta = 0;
}

/// Experts and their router. The loss by which transformers balances them (output_router_logits)
/// multiplies means over all layers, so no layer can compute its part.
void read_experts(Keys& file, bool mixtral, ModelSpec& m) {
  m.mixtral_names = mixtral;
  // transformers 5 writes the first name for both, and published files of Qwen3 have the second.
  const char* const key =
      file.has("num_local_experts") || mixtral ? "num_local_experts" : "num_experts";
  m.experts = file.count(key, mixtral ? 8 : 128);
  m.experts_per_token = file.count("num_experts_per_tok", mixtral ? 2 : 8);
  file.must_be("output_router_logits", {false});
  if (mixtral) return file.must_be("router_jitter_noise", {0.0});
  m.ffn = file.count("moe_intermediate_size", 768);
  m.norm_topk = file.truth("norm_topk_prob", false);
  file.must_be("decoder_sparse_step", {1});
  file.must_be("mlp_only_layers", {Json::array()});
}

/// LLaMA and the models whose layers are LLaMA's with a difference.
void read_llama(Keys& file, const std::string& where, const std::string& type, ModelSpec& m) {
  m.family = Family::llama;
  const bool third = type == "gemma3_text", second = type == "gemma2" || third,
             gemma = type == "gemma" || second;
  // The published files of Gemma 3 leave out the sizes that are transformers' defaults.
  const auto count = [&](const char* key, int in_gemma3) {
    return third ? file.count(key, in_gemma3) : file.count(key);
  };
  m.vocab = count("vocab_size", 262208);
  m.layers = count("num_hidden_layers", 26);
  m.hidden = count("hidden_size", 2304);
  m.heads = count("num_attention_heads", 8);
  // Mistral has 8 unless the file says null: as many as heads.
  const bool eight =
      (type == "mistral" || type == "mixtral") && !file.stated("num_key_value_heads");
  m.kv_heads = file.count("num_key_value_heads", eight             ? 8
                                                 : second          ? 4
                                                 : type == "gemma" ? 16
                                                                   : m.heads);
  const bool third_qwen = type == "qwen3" || type == "qwen3_moe";
  m.head_dim = file.count("head_dim", type == "qwen3" ? 128 : gemma ? 256 : 0);
  m.ffn = count("intermediate_size", 9216);
  m.seq_len = count("max_position_embeddings", 131072);
  m.tied = file.truth("tie_word_embeddings", false);
  m.norm_epsilon = file.number("rms_norm_eps", type == "phi3" || type == "mixtral" ? 1e-5 : 1e-6);
  if (!gemma) file.must_be("hidden_act", {"silu"});
  file.must_be("attention_bias", {false});
  file.must_be("mlp_bias", {false});
  file.must_be("attention_dropout", {0.0});
  if (third) m.rope_theta = 1e6, m.local_rope_theta = 1e4;
  if (type == "mixtral") m.rope_theta = 1e6;
  read_rotary(file, where, type == "phi3", m);
  // Mistral's layers have a window of 4,096 tokens unless the file says null.
  if (type == "mistral" && !file.stated("sliding_window")) m.window = 4096;
  if (type == "mistral" || type == "mixtral" || type == "phi3")
    m.window = file.count("sliding_window", m.window);
  if (type == "mixtral" || type == "qwen3_moe") read_experts(file, type == "mixtral", m);
  if (type == "qwen2" || third_qwen) {
    m.qkv_bias = type == "qwen2";
    m.qk_norm = third_qwen;
    file.must_be("use_sliding_window", {false});
  }
  if (gemma) read_gemma(file, type == "gemma", m);
  if (second) read_gemma2(file, third, m);
  if (type == "phi3") {
    m.fused_weights = true;
    for (const char* key : {"resid_pdrop", "embd_pdrop"}) file.must_be(key, {0.0});
  }
}

/// The type of the model that reads text, which is known here. `part`: of a model that also sees
/// images, whose file has more types and says so in an object of its own.
std::string known_type(const Keys& file, const std::string& type, bool part) {
  std::vector<std::string> known = {"gpt2",    "bert",  "llama",  "mistral",
                                    "mixtral", "qwen2", "qwen3",  "qwen3_moe",
                                    "phi3",    "gemma", "gemma2", "gemma3_text"};
  if (!part) known.insert(known.end(), {"gemma3", "mistral3"});
  if (std::find(known.begin(), known.end(), type) != known.end()) return type;
  const std::string note = model_note(type);
  file.fail(fmt::format("\"model_type\" = \"{}\": must be {}{}", type, fmt::join(known, ", "),
                        note.empty() ? did_you_mean(type, known) : "; " + note));
}

ModelSpec read_text_model(Keys& file, const std::string& where, const std::string& type) {
  ModelSpec m;
  if (type == "gpt2")
    read_gpt2(file, m);
  else if (type == "bert")
    read_bert(file, m);
  else
    read_llama(file, where, type, m);
  if (m.seq_len == 0) m.seq_len = m.max_positions;
  return m;
}

}  // namespace

ModelSpec read_config_json(const std::string& path) {
  if (!std::filesystem::exists(path))
    throw InputError(fmt::format("model file \"{}\" does not exist", path));
  const Json json = parse_json(read_file(path), path);
  Keys file(json, path);
  std::string type = known_type(file, file.text("model_type", ""), false), where = path;
  std::optional<Keys> text;
  if (type == "gemma3" || type == "mistral3") {
    const char* const key = "text_config";
    text.emplace(keys_inside(file, path, key));
    where = fmt::format("{}: {}", path, key);
    type = text->text("model_type", type == "gemma3" ? "gemma3_text" : "mistral");
    known_type(*text, type, true);
  }
  ModelSpec m = read_text_model(text ? *text : file, where, type);
  m.name = std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
  return m;
}

}  // namespace rehearse::model
