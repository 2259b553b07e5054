// What Gemma 2 has beside LLaMA: windows in some layers, norms of outputs, caps of scores and
// logits that software fuses or does not. Counts against closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <set>

#include "engine/job/identity.h"
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "tests/message_of.h"

namespace rehearse::model {
namespace {

using program::DType;
using program::Pass;
using software::SoftCaps;
using software::Softmax;
using testing::AllOf;
using testing::HasSubstr;

constexpr Id windowed = 1, mlp = 2, global = 3;  // segments

struct Work {
  double flops = 0, bytes = 0;
  int kernels = 0;
  Work operator-(const Work& o) const {
    return {flops - o.flops, bytes - o.bytes, kernels - o.kernels};
  }
};
Work work(const ModelSpec& m, Id segment, Pass pass, DType dtype = DType::bf16) {
  const SegmentWork of = work_of(m, segment, pass, 1, 1, dtype);
  return {of.flops.value, of.traffic.value, of.kernels};
}

/// The model with one change.
template <class F>
ModelSpec with(const ModelSpec& m, const F& change) {
  ModelSpec changed = m;
  change(changed);
  return build_model(changed);
}

TEST(Gemma, TheThirdHasFiveLayersWithAWindowForOneWithout) {
  const ModelSpec m = load_model("gemma3-1b", 0);
  for (int layer = 0; layer < m.layers; ++layer)
    EXPECT_EQ(attention_span(m, layer), layer % 6 == 5 ? 32768 : 512) << layer;
  const auto other = [](double theta, int window) {
    return test::message_of<InputError>([&] {
      with(load_model("gemma3-1b", 0), [&](ModelSpec& x) {
        x.local_rope_theta = theta, x.window = window, x.global_every = 0;
      });
    });
  };
  EXPECT_THAT(other(0.5, 512), HasSubstr("local_rope_theta = 0.5 must be at least 1"));
  EXPECT_THAT(other(1e4, 0), HasSubstr("so window must be stated"));
  EXPECT_NE(job::hash_of(m), job::hash_of(with(m, [](ModelSpec& x) { x.local_rope_theta = 0; })));
}

TEST(MistralFile, HasEightKeyValueHeadsUnlessItSaysNull) {
  const auto kv_heads = [](const std::string& rest) {
    const std::string path = testing::TempDir() + "/mistral.json";
    std::ofstream(path) << R"({"model_type": "mistral", "hidden_size": 1024, "vocab_size": 32000,
      "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
      "max_position_embeddings": 4096)"
                        << rest << "}";
    return load_model(path, 0).kv_heads;
  };
  EXPECT_EQ(kv_heads(""), 8);
  EXPECT_EQ(kv_heads(R"(, "num_key_value_heads": null)"), 16);
  EXPECT_EQ(kv_heads(R"(, "num_key_value_heads": 4)"), 4);
}

/// Transformers 4 wrote the bases of both kinds of layers, the stretch and the pattern as keys of
/// their own; version 5 writes one object and a list of layers.
TEST(Gemma, TheThirdsOlderFilesSayTheSame) {
  const auto read = [](const std::string& rest) {
    const std::string path = testing::TempDir() + "/gemma3.json";
    std::ofstream(path) << R"({"model_type": "gemma3_text", "hidden_size": 640, "vocab_size": 1000,
      "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 256,
      "num_key_value_heads": 1, "max_position_embeddings": 4096, "sliding_window": 512, )"
                        << rest << "}";
    return load_model(path, 0);
  };
  const ModelSpec older = read(R"("rope_theta": 500000, "rope_local_base_freq": 20000,
    "rope_scaling": {"rope_type": "linear", "factor": 8}, "sliding_window_pattern": 4)");
  EXPECT_EQ(older.rope_theta, 500000);
  EXPECT_EQ(older.local_rope_theta, 20000);
  EXPECT_EQ(older.rope_scaling.factor, 8);
  EXPECT_EQ(older.global_every, 4);
  const std::string window = R"("sliding_attention", )", none = R"("full_attention")";
  const std::string four = window + window + window + none;
  const ModelSpec newer = read(R"("rope_parameters": {
    "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 500000},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20000}}, "layer_types": [)" +
                               four + ", " + four + "]");
  EXPECT_EQ(job::hash_of(older), job::hash_of(newer));
  const ModelSpec least = read(R"("use_cache": true)");
  EXPECT_EQ(least.rope_theta, 1e6);
  EXPECT_EQ(least.local_rope_theta, 1e4);
  EXPECT_EQ(least.global_every, 6);
}

/// The published files are of a model that also sees images. They leave out what is a default.
TEST(Gemma, TheThirdsPublishedFileIsTheModelOfItsName) {
  const std::string path = testing::TempDir() + "/gemma3-4b.json";
  std::ofstream(path) << R"({"model_type": "gemma3", "vision_config": {"hidden_size": 1152},
      "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024}})";
  EXPECT_EQ(job::hash_of(load_model(path, 0)), job::hash_of(load_model("gemma3-4b", 0)));
}

TEST(Gemma, EverySecondLayerHasNoWindow) {
  const ModelSpec m = load_model("gemma2-2b", 0);
  const double s = 8192, window = 4096, width = 8 * 256;
  EXPECT_EQ(attention_span(m, 0), 4096);
  EXPECT_EQ(attention_span(m, 1), 8192);
  EXPECT_EQ(attention_span(m, 25), 8192);
  EXPECT_EQ(work(m, global, Pass::forward).flops - work(m, windowed, Pass::forward).flops,
            4 * width * s * (s - window));
  EXPECT_EQ(shape_of(m, windowed), shape_of(m, 5));
  EXPECT_EQ(shape_of(m, global), shape_of(m, 7));
  EXPECT_NE(shape_of(m, windowed), shape_of(m, global));
  EXPECT_NE(shape_of(m, mlp), shape_of(m, global));
  EXPECT_EQ(model_flops(m, 1).value, 6 * 2'614'341'888.0 + 12 * width * 13 * (s + window));
  const ModelSpec sixth = with(m, [](ModelSpec& x) { x.global_every = 6; });
  for (int layer = 0; layer < 12; ++layer)
    EXPECT_EQ(attention_span(sixth, layer), layer == 5 || layer == 11 ? 8192 : 4096) << layer;
}

// A pipeline of equal work gives more layers to a stage whose layers have windows.
TEST(Gemma, StagesOfEqualWorkKnowWhichLayersHaveWindows) {
  const ModelSpec m = with(load_model("gemma2-2b", 0), [](ModelSpec& x) {
    x.layers = 12, x.window = 1, x.global_every = 12, x.seq_len = 1 << 20, x.vocab = 128;
    x.padded_vocab = 0;
  });
  const plan::Plan divided = plan::complete(
      {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.global_batch = 1, .micro_batches = 1}},
      m);
  // The last layer attends to a million tokens and the others to one: it is alone with the head.
  EXPECT_EQ(m.segments[divided.placement.stages[1].front()].layer, 11);
}

TEST(Gemma, NormsOfOutputsAreCountedAndKeepTheirInputs) {
  const ModelSpec m = load_model("gemma2-9b", 4096);
  const ModelSpec without = with(m, [](ModelSpec& x) { x.output_norm = false; });
  const double h = 3584, tokens = 4096;
  EXPECT_EQ(parameters_of(m) - parameters_of(without), 42 * 2 * 3584);
  for (const Id segment : {windowed, mlp}) {
    EXPECT_EQ(saved_bytes(m, segment, 1, 1, DType::bf16) -
                  saved_bytes(without, segment, 1, 1, DType::bf16),
              tokens * (2 * h + 4));
    // Forward: the norm, and a sum of two tensors in place of the copy of one. Backward: gradients
    // of the norm's input and weight.
    const Work forward = work(m, segment, Pass::forward) - work(without, segment, Pass::forward);
    EXPECT_EQ(forward.kernels, 1);
    EXPECT_EQ(forward.bytes, tokens * (2 * h * (2 + 3 - 2) + 4));
    const Work backward = work(m, segment, Pass::backward) - work(without, segment, Pass::backward);
    EXPECT_EQ(backward.kernels, 2);
    EXPECT_EQ(backward.bytes, tokens * (2 * h * 5 + 2 * 4));
    EXPECT_EQ(work(m, segment, Pass::backward_weight).kernels,
              work(without, segment, Pass::backward_weight).kernels);
  }
}

TEST(Gemma, CapsOfTheDefaultAreNoKernels) {
  const ModelSpec m = load_model("gemma2-2b", 4096);
  const ModelSpec without = with(m, [](ModelSpec& x) { x.attention_cap = x.logit_cap = 0; });
  for (Id s = 0; s < m.segments.size(); ++s)
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      EXPECT_EQ(work(m, s, pass).kernels, work(without, s, pass).kernels);
      EXPECT_EQ(saved_bytes(m, s, 1, 1, DType::bf16), saved_bytes(without, s, 1, 1, DType::bf16));
    }
  EXPECT_FALSE(writes_scores(m));
}

TEST(Gemma, CapsOfTheirOwnWriteScoresAndKeepTheirTanh) {
  ModelSpec m = load_model("gemma2-2b", 4096);
  m.software.soft_caps = SoftCaps::separate;
  EXPECT_TRUE(writes_scores(m));
  ModelSpec uncapped = m;  // whose scores are written all the same
  uncapped.attention_cap = uncapped.logit_cap = 0;
  EXPECT_FALSE(writes_scores(uncapped));
  uncapped.software.attention = software::Attention::written;
  const double scores = 8.0 * 4096 * 4096, logits = 4096.0 * 256000;
  for (const Softmax softmax : {Softmax::fused, Softmax::separate}) {
    const bool fused = softmax == Softmax::fused;
    m.software.softmax = uncapped.software.softmax = softmax;
    for (const auto& [dtype, e] : {std::pair{DType::bf16, 2.0}, {DType::f32, 4.0}}) {
      // Quotient, tanh, product. Unless one kernel scales, masks and normalises, the softmax alone
      // is in f32, with a conversion.
      const bool converts = !fused && e < 4;
      const Work forward =
          work(m, global, Pass::forward, dtype) - work(uncapped, global, Pass::forward, dtype);
      EXPECT_EQ(forward.flops, 0);
      EXPECT_EQ(forward.kernels, 3 + (converts ? 1 : 0));
      EXPECT_EQ(forward.bytes, scores * (6 * e + (converts ? (e + 4) + (4 + e) - 2 * e : 0)));
      const Work backward =
          work(m, global, Pass::backward, dtype) - work(uncapped, global, Pass::backward, dtype);
      EXPECT_EQ(backward.kernels, 3 + (converts ? 1 : 0));
      EXPECT_EQ(backward.bytes, scores * (7 * e + (converts ? (4 + e) + (8 + e) - 3 * e : 0)));
      EXPECT_EQ(
          double(saved_bytes(m, global, 1, 1, dtype) - saved_bytes(uncapped, global, 1, 1, dtype)),
          scores * (e + (converts ? 4 : 0)));
      const Id head = static_cast<Id>(m.segments.size() - 1);
      const Work loss =
          work(m, head, Pass::forward, dtype) - work(uncapped, head, Pass::forward, dtype);
      EXPECT_EQ(loss.kernels, 3);
      EXPECT_EQ(loss.bytes, logits * 6 * e);
      EXPECT_EQ((work(m, head, Pass::backward, dtype) - work(uncapped, head, Pass::backward, dtype))
                    .bytes,
                logits * 7 * e);
      EXPECT_EQ(
          double(saved_bytes(m, head, 1, 1, dtype) - saved_bytes(uncapped, head, 1, 1, dtype)),
          logits * e);
    }
  }
  ModelSpec again = m;
  again.software.recompute_scores = true;
  EXPECT_EQ(double(saved_bytes(m, global, 1, 1, DType::bf16) -
                   saved_bytes(again, global, 1, 1, DType::bf16)),
            scores * (2 + 4 + 2));
}

TEST(Gemma, WhichSoftwareCapsInItsKernels) {
  for (const auto& [name, fused] : {std::pair{"rehearse", true},
                                    {"pytorch-2", false},
                                    {"pytorch-2.2", false},
                                    {"pytorch-2-compiled", true},
                                    {"pytorch-2.0-compiled", false},
                                    {"megatron-2021", false},
                                    {"megatron-core", false}})
    EXPECT_EQ(software::load_software(name).soft_caps == SoftCaps::fused, fused) << name;
}

TEST(Gemma, TheEmbeddingIsScaled) {
  const ModelSpec m = load_model("gemma2-2b", 4096);
  ModelSpec plain = with(m, [](ModelSpec& x) { x.scaled_embedding = false; });
  const Work forward = work(m, 0, Pass::forward) - work(plain, 0, Pass::forward);
  EXPECT_EQ(forward.kernels, 1);
  EXPECT_EQ(forward.bytes, 4096.0 * 2304 * 2 * 2);
  EXPECT_EQ(work(m, 0, Pass::backward).kernels, work(plain, 0, Pass::backward).kernels);
  ModelSpec eager = m;
  eager.software.operators = plain.software.operators = software::Operators::separate;
  EXPECT_EQ(work(eager, 0, Pass::backward).kernels - work(plain, 0, Pass::backward).kernels, 1);
}

TEST(Gemma, OffsetsOfNormsAreInF32) {
  ModelSpec m = load_model("gemma2-2b", 4096);
  m.software.operators = software::Operators::separate;
  const ModelSpec plain = with(m, [](ModelSpec& x) { x.norm_offset = false; });
  // Two norms a segment. Each weight becomes f32 and is added to 1; products with it are f32.
  const Work forward = work(m, mlp, Pass::forward) - work(plain, mlp, Pass::forward);
  EXPECT_EQ(forward.kernels, 2 * 2);
  EXPECT_EQ(forward.bytes, 2 * (4096.0 * 2304 * (36 + 2 * 2 - 28 - 4 * 2) + 2304 * (2 + 12)));
}

TEST(Gemma, NormsOfOutputsRefuseWhatDividesASegment) {
  const ModelSpec m = load_model("gemma2-2b", 4096);
  EXPECT_EQ(tensor_divisor(m), 1);
  const auto refusal = [&](plan::Mesh mesh) {
    return test::message_of([&] {
      plan::complete({.method = "megatron", .mesh = mesh, .schedule = {.global_batch = 4}}, m);
    });
  };
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_THAT(refusal({.tp = 2}),
              AllOf(HasSubstr("method.tp: 2: must be 1"), HasSubstr("output_norm")));
  EXPECT_THAT(refusal({.order = "pp,dp,cp,tp", .cp = 2}),
              AllOf(HasSubstr("method.cp: 2: must be 1"), HasSubstr("output_norm")));
}

TEST(Gemma, KeysHaveLimitsAndAreLlamasAlone) {
  const ModelSpec m = load_model("gemma2-2b", 4096);
  const auto error = [&](const auto& change) { return test::message_of([&] { with(m, change); }); };
  EXPECT_THAT(error([](ModelSpec& x) { x.window = 0; }), HasSubstr("global_every = 2 says which"));
  EXPECT_THAT(error([](ModelSpec& x) { x.global_every = -1; }), HasSubstr("global_every = -1"));
  EXPECT_THAT(error([](ModelSpec& x) { x.logit_cap = -1; }), HasSubstr("logit_cap = -1 must be"));
  EXPECT_THAT(error([](ModelSpec& x) { x.query_scalar = 1e7; }), HasSubstr("query_scalar = 1"));
  ModelSpec gpt = load_model("gpt2-124m", 0);
  const auto of_gpt = [&](const auto& change) {
    return test::message_of([&] { with(gpt, change); });
  };
  for (const std::string& said : {of_gpt([](ModelSpec& x) { x.norm_offset = true; }),
                                  of_gpt([](ModelSpec& x) { x.output_norm = true; }),
                                  of_gpt([](ModelSpec& x) { x.scaled_embedding = true; }),
                                  of_gpt([](ModelSpec& x) { x.attention_cap = 50; }),
                                  of_gpt([](ModelSpec& x) { x.activation = Activation::geglu; })})
    EXPECT_THAT(said, HasSubstr("is llama's alone"));
}

TEST(Gemma, EachKeyIsPartOfTheIdentity) {
  const ModelSpec m = load_model("gemma2-2b", 4096);
  std::set<std::uint64_t> hashes = {job::hash_of(m)};
  const auto changes = std::to_array<void (*)(ModelSpec&)>(
      {[](ModelSpec& x) { x.activation = Activation::swiglu; },
       [](ModelSpec& x) { x.norm_offset = false; }, [](ModelSpec& x) { x.output_norm = false; },
       [](ModelSpec& x) { x.scaled_embedding = false; }, [](ModelSpec& x) { x.query_scalar = 0; },
       [](ModelSpec& x) { x.attention_cap = 30; }, [](ModelSpec& x) { x.logit_cap = 50; },
       [](ModelSpec& x) { x.global_every = 3; }});
  for (const auto& change : changes) hashes.insert(job::hash_of(with(m, change)));
  EXPECT_EQ(hashes.size(), changes.size() + 1);
}

}  // namespace
}  // namespace rehearse::model
