// Model specs as strict TOML: models/*.toml of the data folder, or the user's own.
#include "engine/config.h"
#include "engine/data_dir.h"
#include "engine/model.h"

namespace rehearse {

ModelSpec load_model(const std::string& name_or_path, int seq_len) {
  const auto path = find_data("models", name_or_path, "model");
  const Config file = Config::load(path.string());
  const auto count = [&](const char* key, std::optional<std::int64_t> fallback) {
    return static_cast<int>(file.integer(key, fallback, between(fallback ? 0 : 1, 1 << 30)));
  };
  ModelSpec m;
  m.name = path.stem().string();
  const std::string family = file.text("family", std::nullopt, {"gpt", "bert", "llama"});
  m.family = family == "gpt" ? Family::gpt : family == "bert" ? Family::bert : Family::llama;
  m.layers = count("layers", std::nullopt);
  m.hidden = count("hidden", std::nullopt);
  m.heads = count("heads", std::nullopt);
  m.kv_heads = count("kv_heads", 0);  // 0 here and below: build_model's default
  m.ffn = count("ffn", 0);
  m.vocab = count("vocab", std::nullopt);
  m.padded_vocab = count("padded_vocab", 0);
  m.seq_len = count("seq_len", std::nullopt);
  m.max_positions = count("max_positions", 0);
  m.dropout = file.number("dropout", 0.0, between(0, 1));
  m.tied = file.flag("tied", true);
  file.finish();
  if (m.max_positions == 0) m.max_positions = m.seq_len;
  if (seq_len > 0) m.seq_len = seq_len;
  try {
    return build_model(m);
  } catch (const InputError& e) {
    throw InputError(path.string() + ": " + e.what());
  }
}

std::vector<std::string> known_models() { return data_names("models"); }

}  // namespace rehearse
