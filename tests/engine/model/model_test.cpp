// Compares models with published parameter counts, and work and memory with formulas that were
// derived independently.
#include "engine/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/errors.h"

namespace rehearse::model {
namespace {

ModelSpec spec(Family family, int layers, int hidden, int heads, int vocab, int seq) {
  ModelSpec m;
  m.name = "test";
  m.family = family;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.vocab = vocab;
  m.padded_vocab = vocab;
  m.seq_len = seq;
  return m;
}
ModelSpec gpt(int layers, int hidden, int heads, int vocab, int seq) {
  return build_model(spec(Family::gpt, layers, hidden, heads, vocab, seq));
}
ModelSpec bert(int layers, int hidden, int heads, int vocab, int seq) {
  return build_model(spec(Family::bert, layers, hidden, heads, vocab, seq));
}

ModelSpec llama(int layers, int hidden, int heads, int kv_heads, int ffn, int seq) {
  ModelSpec m;
  m.name = "test";
  m.family = Family::llama;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.ffn = ffn;
  m.vocab = 32000;
  m.seq_len = seq;
  m.tied = false;
  return build_model(m);
}

TEST(Model, HasThePublishedParameterCounts) {
  EXPECT_EQ(parameters_of(gpt(12, 768, 12, 50257, 1024)), 124'439'808);           // GPT-2
  EXPECT_EQ(parameters_of(gpt(48, 1600, 25, 50257, 1024)), 1'557'611'200);        // GPT-2 XL
  EXPECT_EQ(parameters_of(bert(12, 768, 12, 30522, 512)), 109'514'298);           // BertForMaskedLM
  EXPECT_EQ(parameters_of(bert(24, 1024, 16, 30522, 512)), 335'174'458);          // the large one
  EXPECT_EQ(parameters_of(llama(32, 4096, 32, 32, 11008, 2048)), 6'738'415'616);  // LLaMA 7B
  // 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)): Narayanan et al. 2021, eq. 2, without its
  // rounding of the norms.
  const double l = 96, h = 12288, v = 51200, s = 2048;
  const double paper = 12 * l * h * h * (1 + 13 / (12 * h) + (v + s) / (12 * l * h));
  EXPECT_NEAR(double(parameters_of(gpt(96, 12288, 96, 51200, 2048))), paper, 2 * h + 0.5);
}

TEST(Model, PadsTheVocabularyAndSharesTheTiedTable) {
  ModelSpec m;
  m.layers = 2;
  m.hidden = 64;
  m.heads = 4;
  m.vocab = 50257;
  m.seq_len = 16;
  m = build_model(m);
  EXPECT_EQ(m.padded_vocab, 50304);
  ASSERT_EQ(m.segments.size(), 6U);
  EXPECT_EQ(m.segments[3].name, "L1.attention");
  EXPECT_EQ(m.segments.front().groups[0], m.segments.back().groups[0]);
  EXPECT_EQ(m.groups[m.segments.front().groups[0]].name, "wte");
  m.tied = false;
  m = build_model(m);
  EXPECT_NE(m.segments.front().groups[0], m.segments.back().groups[0]);
}

TEST(Model, ShardsSplitGroupsOnly) {
  for (const ModelSpec& m :
       {gpt(2, 96, 12, 384, 32), bert(2, 96, 12, 384, 32), llama(2, 96, 12, 4, 256, 32)}) {
    for (const ParamGroup& group : m.groups) {
      for (const int tp : {1, 2, 4}) {
        EXPECT_EQ(elements_of(group, tp) * (group.split ? tp : 1), elements_of(group, 1))
            << group.name;
        for (const TensorSpec& tensor : group.tensors) EXPECT_EQ(tensor.split >= 0, group.split);
      }
    }
  }
  EXPECT_THROW(elements_of(gpt(2, 96, 12, 384, 32).groups[2], 8), InputError);
}

// Forward and backward without recompute take 72 B s L h^2 (1 + s / (6 h) + V / (12 h L)) FLOPs.
// Narayanan et al. 2021, eq. 3 has 96 in place of 72, because it includes recompute.
TEST(Model, CountsTheWorkOfMegatronsFormula) {
  const int samples = 4;
  for (const auto& [layers, hidden, heads, vocab, seq] :
       {std::tuple{96, 12288, 96, 51200, 2048}, {24, 2304, 24, 51200, 2048}}) {
    const ModelSpec m = gpt(layers, hidden, heads, vocab, seq);
    for (const int tp : {1, 8}) {
      double all = 0, recompute = 0;
      for (Id s = 0; s < m.segments.size(); ++s) {
        for (const program::Pass pass : {program::Pass::forward, program::Pass::backward}) {
          all += tp * work_of(m, s, pass, samples, tp, program::DType::bf16).flops.value;
        }
        if (m.segments[s].layer >= 0) {
          recompute +=
              tp * work_of(m, s, program::Pass::recompute, samples, tp, program::DType::bf16)
                       .flops.value;
        }
      }
      const double b = samples, s = seq, l = layers, h = hidden, v = vocab;
      EXPECT_DOUBLE_EQ(all, 72 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * h * l)));
      EXPECT_DOUBLE_EQ(all + recompute,
                       96 * b * s * l * h * h * (1 + s / (6 * h)) + 6 * b * s * v * h);
    }
  }
}

// Counts the mlp segment kernel by kernel, in f32 without dropout. e: bytes of one activation.
TEST(Model, CountsTrafficAndKernels) {
  const ModelSpec m = gpt(4, 1024, 16, 51200, 512);
  const double tokens = 2 * 512, e = tokens * 1024 * 4, statistics = 8 * tokens;
  const SegmentWork forward = work_of(m, 2, program::Pass::forward, 2, 1, program::DType::f32);
  // Norm, product, GELU (reads 4 e, writes 4 e), residual, product.
  EXPECT_DOUBLE_EQ(forward.traffic.value, 2 * e + statistics + 8 * e + 2 * e);
  EXPECT_EQ(forward.kernels, 5);
  const SegmentWork backward = work_of(m, 2, program::Pass::backward, 2, 1, program::DType::f32);
  // Bias, two products, GELU, bias, two products, norm (two kernels that read gradient and input),
  // residual.
  EXPECT_DOUBLE_EQ(backward.traffic.value, e + 12 * e + 4 * e + 5 * e + 2 * statistics + 3 * e);
  EXPECT_EQ(backward.kernels, 1 + 2 + 1 + 1 + 2 + 2 + 1);
  EXPECT_EQ(work_of(m, 2, program::Pass::recompute, 2, 1, program::DType::f32).traffic,
            forward.traffic);
  // 16 bits halve all bytes except the statistics; tp divides only the inner activations.
  const double half =
      work_of(m, 2, program::Pass::forward, 2, 4, program::DType::bf16).traffic.value;
  EXPECT_DOUBLE_EQ(half, (2 * e + 8 * e / 4 + 2 * e) / 2 + statistics);
}

// Korthikanti et al. 2022, eq. 1: 34 s b h bytes per layer in 16 bits, without attention's
// matrices. Here two inputs (2 + 2) are boundary activations and two dropout masks (1 + 1) are
// recomputed; flash attention adds 4 bytes per head and token, and each norm keeps 8 bytes per
// token.
TEST(Model, KeepsTheActivationsOfThePaper) {
  const ModelSpec m = gpt(4, 1024, 16, 51200, 512);
  const std::int64_t tokens = 2 * 512;
  for (const int tp : {1, 2, 4}) {
    const std::int64_t attention = saved_bytes(m, 1, 2, tp, program::DType::bf16);
    const std::int64_t mlp = saved_bytes(m, 2, 2, tp, program::DType::bf16);
    const std::int64_t whole = 2 * 1024 * 2, split = (6 + 2 + 8 + 8) * 1024;
    EXPECT_EQ(attention + mlp, tokens * (whole + split / tp + 4 * 16 / tp + 16));
  }
  EXPECT_EQ(saved_bytes(m, 0, 2, 1, program::DType::bf16), 0);
  EXPECT_EQ(saved_bytes(m, 9, 2, 1, program::DType::f32), tokens * (4 * (1024 + 51200) + 8));
}

TEST(Model, CountsModelFlopsPerToken) {
  const ModelSpec m = gpt(12, 768, 12, 50257, 1024);
  const double n = 124'439'808 - 1024 * 768;
  EXPECT_DOUBLE_EQ(model_flops(m, 10).value, 10 * (6 * n + 12.0 * 12 * 768 * 1024));
  ModelSpec padded = m;
  padded.padded_vocab = 50304;
  EXPECT_DOUBLE_EQ(model_flops(build_model(padded), 10).value, model_flops(m, 10).value);
  // Untied: the embedding's table is only looked up and does no work.
  const ModelSpec l = llama(32, 4096, 32, 32, 11008, 2048);
  EXPECT_DOUBLE_EQ(model_flops(l, 1).value,
                   6 * (6'738'415'616.0 - 32000.0 * 4096) + 12.0 * 32 * 4096 * 2048);
}

TEST(Model, RefusesShapesThatDoNotFit) {
  const auto message = [](ModelSpec m) -> std::string {
    m.name = "mine";
    try {
      build_model(m);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  ModelSpec m = gpt(2, 64, 4, 512, 32);
  m.heads = 5;
  m.kv_heads = m.head_dim = 0;
  EXPECT_EQ(message(m),
            "model mine: heads = 5 does not divide hidden = 64 (nearest that does: 4), so head_dim "
            "must be stated");
  m = gpt(2, 64, 4, 512, 32);
  m.seq_len = 64;
  EXPECT_THAT(message(m), testing::HasSubstr("seq_len = 64 is beyond max_positions = 32"));
  m = gpt(2, 64, 4, 512, 32);
  m.padded_vocab = 500;
  EXPECT_THAT(message(m), testing::HasSubstr("padded_vocab = 500 must be at least vocab = 512"));
  m = gpt(2, 64, 4, 512, 32);
  m.dropout = 1;
  EXPECT_THAT(message(m), testing::HasSubstr("dropout = 1 must be"));
  m = gpt(2, 64, 4, 512, 32);
  m.layers = 0;
  EXPECT_THAT(message(m), testing::HasSubstr("layers = 0 must be at least 1"));
}

}  // namespace
}  // namespace rehearse::model
