#include "runtime/checkpoints/outer_names.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/tensors/tensor_parts.h"

namespace rehearse::runtime {
namespace {

bool ends_with_any(const std::string& name, const auto& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return name.ends_with(ending); });
}

bool starts_with_any(const std::string& name, const auto& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const char* beginning) { return name.starts_with(beginning); });
}

/// Whether the tensor's first dimension is the vocabulary.
bool vocabulary(const std::string& name) {
  return ends_with_any(name, std::array{"wte.weight", "embed_tokens.weight", "lm_head.weight",
                                        "word_embeddings.weight", "cls.predictions.decoder.weight",
                                        "cls.predictions.bias"});
}

/// Where files of fused weights (Phi 3) have the rows of a matrix: behind each other in another.
struct Part {
  std::string ending = {}, matrix = {};
  std::int64_t first_row = 0, all_rows = 0;
};
std::optional<Part> part_of(const model::ModelSpec& model, const std::string& name) {
  if (!model.fused_weights) return std::nullopt;
  const std::int64_t query = query_width(model), key = key_width(model), ffn = model.ffn;
  const char *const qkv = ".qkv_proj.weight", *const gate_up = ".gate_up_proj.weight";
  for (const Part& part : {Part{".q_proj.weight", qkv, 0, query + 2 * key},
                           {".k_proj.weight", qkv, query, query + 2 * key},
                           {".v_proj.weight", qkv, query + key, query + 2 * key},
                           {".gate_proj.weight", gate_up, 0, 2 * ffn},
                           {".up_proj.weight", gate_up, ffn, 2 * ffn}})
    if (name.ends_with(part.ending)) return part;
  return std::nullopt;
}

}  // namespace

OuterTensor outer_tensor(const model::ModelSpec& model, const model::TensorSpec& spec) {
  OuterTensor outer;
  outer.padded = vocabulary(spec.name);
  const std::int64_t all = tensors::elements_of(spec);
  if (!spec.decay) {  // a bias or a norm: one dimension
    outer.shape = {outer.padded ? model.vocab : all};
    outer.all_rows = outer.shape[0];
    return outer;
  }
  // Heads are dimensions of a matrix's rows; of its columns, where they are the middle of three.
  const bool heads_in_columns = spec.shape.size() == 3 && spec.split == 1;
  const std::int64_t rows = heads_in_columns ? spec.shape.front() : all / spec.shape.back();
  outer.shape = {outer.padded ? model.vocab : rows, all / rows};
  outer.transposed = model.family == model::Family::gpt && spec.name.starts_with("transformer.h.");
  if (outer.transposed) std::swap(outer.shape[0], outer.shape[1]);
  outer.all_rows = outer.shape[0];
  if (const auto part = part_of(model, spec.name))
    outer.first_row = part->first_row, outer.all_rows = part->all_rows;
  return outer;
}

std::vector<std::string> outer_names(const model::ModelSpec& model, const std::string& name) {
  if (const auto part = part_of(model, name))
    return {name.substr(0, name.size() - part->ending.size()) + part->matrix};
  std::vector<std::string> names = {name};
  // The text model of one that also sees images (Gemma 3, Mistral Small 3.1): as published, and as
  // transformers names its modules since version 4.52.
  if (model.family == model::Family::llama) {
    names.push_back("language_model." + name);
    const std::string inner = "model.";
    if (name.starts_with(inner))
      names.push_back("model.language_model." + name.substr(inner.size()));
  }
  const std::string prefix = "transformer.";
  // OpenAI's GPT-2 files have no prefix.
  if (model.family == model::Family::gpt && name.starts_with(prefix))
    names.push_back(name.substr(prefix.size()));
  // Google's BERT files have TensorFlow's names in norms.
  const std::size_t norm = name.rfind("LayerNorm.");
  if (model.family == model::Family::bert && norm != std::string::npos)
    names.push_back(name.substr(0, norm) +
                    (name.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta"));
  return names;
}

bool is_beside(const model::ModelSpec& model, const std::string& name) {
  switch (model.family) {
    case model::Family::gpt:  // masks of attention
      return ends_with_any(name, std::array{".attn.bias", ".attn.masked_bias"});
    case model::Family::bert:  // next-sentence head, position numbers, a copy of predictions.bias
      return name.starts_with("bert.pooler.") || name.starts_with("cls.seq_relationship.") ||
             name == "bert.embeddings.position_ids" || name == "cls.predictions.decoder.bias";
    case model::Family::llama:  // what sees images
      return name.ends_with(".rotary_emb.inv_freq") ||
             starts_with_any(
                 name, std::array{"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                  "model.multi_modal_projector."});
  }
  return false;
}

TiedNames tied_names(const model::ModelSpec& model) {
  switch (model.family) {
    case model::Family::gpt:
      return {"lm_head.weight", "transformer.wte.weight"};
    case model::Family::bert:
      return {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"};
    case model::Family::llama:
      break;
  }
  return {"lm_head.weight", "model.embed_tokens.weight"};
}

}  // namespace rehearse::runtime
