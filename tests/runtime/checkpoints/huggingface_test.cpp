// Weights of tiny random models of Hugging Face's transformers go in, their logits come out, and so
// do the same weights; what does not fit is refused. tests/data/huggingface/record.py recorded the
// models.
#include "runtime/checkpoints/huggingface.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/files/data_dir.h"
#include "engine/methods/strategy.h"
#include "models/block.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

struct Recorded {
  std::string folder = {};
  nlohmann::json json = {};
  explicit Recorded(const std::string& name)
      : folder((data_dir() / "tests/data/huggingface" / name).string()),
        json(nlohmann::json::parse(std::ifstream(folder + "/recorded.json"))) {}
  std::string weights() const { return folder + "/model.safetensors"; }
};

/// A step that changes nothing, on two tensor-parallel ranks with shards of the state.
job::Job still_job(const Recorded& recorded, const std::string& data, const std::string& out) {
  job::Job job = small_job({.method = "megatron", .mesh = {.dp = 2, .tp = 2}}, data, out);
  job.model = model::load_model(recorded.folder + "/config.json", recorded.json["length"]);
  job.model.dropout = 0;
  plan::Plan plan{
      .method = "megatron", .mesh = {.dp = 2, .tp = 2}, .schedule = {.global_batch = 4}};
  if (job.model.output_norm) plan.mesh.dp = 4, plan.mesh.tp = 1;  // which tp does not divide
  job.plan = methods::prepare(plan, job.model);
  job.train.steps = 1;
  job.train.lr = 0;
  job.train.eval_batches = 0;
  return job;
}

/// Tokens in the models' vocabulary.
void write_small_data(const ScratchFolder& folder) {
  write_shard(folder.file("tiny_train_000.bin"), learnable_tokens(400, 60));
  write_text(folder.file("manifest.json"),
             R"({"vocab_size": 61, "special_token_ids": {"mask": 60}})");
}

/// Logits (T, vocab) of the first window of the recorded stream, by the blocks.
at::Tensor logits_of(const model::ModelSpec& model, const reference::Weights& weights,
                     const nlohmann::json& stream) {
  models::Batch batch;
  batch.train = false;
  batch.tokens = at::tensor(stream.get<std::vector<std::int64_t>>(), at::kLong)
                     .narrow(0, 0, model.seq_len)
                     .unsqueeze(0);
  batch.labels = at::zeros_like(batch.tokens);
  at::Tensor x;
  models::Saved saved;
  for (Id s = 0; s < model.segments.size(); ++s) {
    std::vector<at::Tensor> params;
    for (const Id group : model.segments[s].groups) {
      std::vector<at::Tensor> flat;
      for (const model::TensorSpec& spec : model.groups[group].tensors)
        flat.push_back(weights.at(spec.name).flatten());
      params.push_back(at::cat(flat));
    }
    x = models::make_block(model, s, 1, 0, program::DType::f32)->forward(params, x, batch, &saved);
  }
  // The head keeps exp(logit - maximum of the row), and returns the maximum.
  return saved.tensors[3].log().add(x.view({-1, 3}).narrow(1, 0, 1)).narrow(1, 0, model.vocab);
}

class HuggingFace : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, LogitsAreTheRecordedOnesAndWeightsComeOutAsTheyWere) {
  const Recorded recorded(GetParam());
  const ScratchFolder data, out;
  write_small_data(data);
  const job::Job job = still_job(recorded, data.path(), out.file("run"));
  EXPECT_EQ(job.model.name, GetParam());
  const TrainedRun run = train_in_processes(job, {.import_weights = recorded.weights()});
  if (HasFailure()) return;

  const reference::Weights weights = weights_of(run.checkpoint, job.model);
  const at::Tensor logits = logits_of(job.model, weights, recorded.json["stream"]);
  const auto rows = recorded.json["logits"].get<std::vector<std::vector<float>>>();
  ASSERT_EQ(logits.size(0), std::ssize(rows));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor row = at::tensor(rows[i]);
    const at::Tensor found = logits[static_cast<std::int64_t>(i)];
    EXPECT_LE((found - row).abs().max().item<double>(), 1e-5 * row.abs().max().item<double>())
        << "token " << i;
  }
  reference::Weights other = weights;  // the comparison sees a small change
  for (auto& [name, tensor] : other) tensor = tensor * 1.001;
  EXPECT_GT(
      (logits_of(job.model, other, recorded.json["stream"]) - logits).abs().max().item<double>(),
      1e-4);

  const std::string file = out.file("model.safetensors");
  export_weights(run.checkpoint, job.model, file);
  const SafetensorsFile theirs(recorded.weights()), ours(file);
  ASSERT_EQ(ours.tensors().size(), theirs.tensors().size());
  for (const auto& [name, entry] : theirs.tensors()) {
    ASSERT_EQ(ours.tensors().count(name), 1U) << name;
    const TensorEntry& mine = ours.tensors().at(name);
    EXPECT_EQ(mine.shape, entry.shape) << name;
    EXPECT_TRUE(std::ranges::equal(mine.data, entry.data)) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Families, HuggingFace,
                         testing::Values("gpt2", "bert", "llama", "mistral", "nemo", "qwen2",
                                         "qwen3", "mixtral", "qwen3_moe", "phi3", "gemma2", "gemma",
                                         "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

/// What an import of changed weights says. `change` may replace tensors of the file.
std::string said(const std::string& model,
                 const std::function<void(TensorTable&, std::vector<float>&)>& change) {
  const Recorded recorded(model);
  const ScratchFolder data, out;
  write_small_data(data);
  const SafetensorsFile theirs(recorded.weights());
  TensorTable table = theirs.tensors();
  std::vector<float> values(5000);  // data of what is added
  change(table, values);
  write_safetensors(out.file("changed.safetensors"), table);
  job::Job job = still_job(recorded, data.path(), "");
  std::string all;
  for (const Outcome& one :
       fail_in_processes(job, {.import_weights = out.file("changed.safetensors")}))
    all += one.text + "\n";
  return all;
}
TensorEntry entry_of(std::vector<float>& values, std::vector<std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return {program::DType::f32, std::move(shape),
          std::as_bytes(std::span(values)).first(static_cast<std::size_t>(elements) * 4)};
}

TEST(HuggingFaceRefuses, WhatTheModelDoesNotHave) {
  EXPECT_THAT(said("llama", [](TensorTable& t, auto&) { t.erase("model.norm.weight"); }),
              HasSubstr("it has no tensor model.norm.weight"));
  EXPECT_THAT(said("llama",
                   [](TensorTable& t, auto& values) {
                     t["model.layers.2.mlp.up_proj.weight"] = entry_of(values, {24, 16});
                   }),
              HasSubstr("model llama has no tensor model.layers.2.mlp.up_proj.weight"));
  EXPECT_THAT(said("mistral",
                   [](TensorTable& t, auto& values) {
                     t["model.layers.1.self_attn.k_proj.weight"] = entry_of(values, {16, 16});
                   }),
              HasSubstr("model.layers.1.self_attn.k_proj.weight has shape [16, 16], model mistral "
                        "needs [8, 16]"));
  EXPECT_THAT(said("phi3",
                   [](TensorTable& t, auto& values) {
                     t["model.layers.1.self_attn.qkv_proj.weight"] = entry_of(values, {16, 16});
                   }),
              HasSubstr("model.layers.1.self_attn.qkv_proj.weight has shape [16, 16], model phi3 "
                        "needs [32, 16]"));
  EXPECT_THAT(said("gpt2",
                   [](TensorTable& t, auto& values) {
                     t["lm_head.weight"] = entry_of(values, {61, 16});
                   }),
              HasSubstr("its lm_head.weight differs from its transformer.wte.weight"));
}

TEST(HuggingFaceReads, FilesOfOtherAges) {
  // OpenAI's names, masks of attention, and a repeated table; then Google's norms and other heads.
  for (const char* model : {"gpt2", "bert"}) {
    const Recorded recorded(model);
    const ScratchFolder data, out;
    write_small_data(data);
    const SafetensorsFile theirs(recorded.weights());
    std::vector<float> values(5000);
    TensorTable old;
    for (const auto& [name, entry] : theirs.tensors()) {
      std::string older = name.starts_with("transformer.") ? name.substr(12) : name;
      if (const std::size_t at = older.find("LayerNorm."); at != std::string::npos)
        older = older.substr(0, at) +
                (older.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
      old[older] = entry;
    }
    if (std::string(model) == "gpt2") {
      old["h.0.attn.bias"] = entry_of(values, {1, 1, 32, 32});
      old["lm_head.weight"] = old.at("wte.weight");
    } else {
      old["bert.pooler.dense.bias"] = entry_of(values, {16});
      old["cls.seq_relationship.bias"] = entry_of(values, {2});
    }
    // In two files with an index.
    TensorTable first, second;
    nlohmann::json map;
    for (const auto& [name, entry] : old) {
      const bool one = first.size() <= second.size();
      (one ? first : second)[name] = entry;
      map[name] = one ? "a.safetensors" : "b.safetensors";
    }
    write_safetensors(out.file("a.safetensors"), first);
    write_safetensors(out.file("b.safetensors"), second);
    write_text(out.file("model.safetensors.index.json"),
               nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
    const job::Job job = still_job(recorded, data.path(), out.file("run"));
    const TrainedRun run =
        train_in_processes(job, {.import_weights = out.file("model.safetensors.index.json")});
    if (testing::Test::HasFailure()) return;
    export_weights(run.checkpoint, job.model, out.file("new.safetensors"));
    const SafetensorsFile ours(out.file("new.safetensors"));
    for (const auto& [name, entry] : theirs.tensors())
      EXPECT_TRUE(std::ranges::equal(ours.tensors().at(name).data, entry.data)) << name;
  }
}

}  // namespace
}  // namespace rehearse::runtime
