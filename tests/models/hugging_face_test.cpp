// Shapes of the published files; that a product means the same on both sides; and back again.
#include "models/hugging_face.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/errors.h"
#include "tests/models/ranks.h"

namespace rehearse {
namespace {

std::map<std::string, std::vector<std::int64_t>> shapes_of(const ModelSpec& m) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (Id g = 0; g < m.groups.size(); ++g) {
    for (std::size_t t = 0; t < m.groups[g].tensors.size(); ++t) {
      shapes[m.groups[g].tensors[t].name] = hugging_face_shape(m, g, t);
    }
  }
  return shapes;
}

using Shape = std::vector<std::int64_t>;

TEST(HuggingFace, HasTheShapesOfThePublishedFiles) {
  auto gpt = shapes_of(load_model("gpt2-124m", 0));
  EXPECT_EQ(gpt.size(), 148U);  // 12 x 12 + wte, wpe, ln_f
  EXPECT_EQ(gpt.at("transformer.wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(gpt.at("transformer.wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(gpt.at("transformer.h.11.ln_1.bias"), (Shape{768}));
  EXPECT_EQ(gpt.at("transformer.h.0.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(gpt.at("transformer.h.0.attn.c_attn.bias"), (Shape{2304}));
  EXPECT_EQ(gpt.at("transformer.h.0.attn.c_proj.weight"), (Shape{768, 768}));
  EXPECT_EQ(gpt.at("transformer.h.0.mlp.c_fc.weight"), (Shape{768, 3072}));
  EXPECT_EQ(gpt.at("transformer.h.0.mlp.c_proj.weight"), (Shape{3072, 768}));
  auto bert = shapes_of(load_model("bert-large", 0));
  EXPECT_EQ(bert.at("bert.embeddings.word_embeddings.weight"), (Shape{30522, 1024}));
  EXPECT_EQ(bert.at("cls.predictions.bias"), (Shape{30522}));
  EXPECT_EQ(bert.at("bert.encoder.layer.0.attention.self.query.weight"), (Shape{1024, 1024}));
  EXPECT_EQ(bert.at("bert.encoder.layer.0.intermediate.dense.weight"), (Shape{4096, 1024}));
  EXPECT_EQ(bert.at("bert.encoder.layer.0.output.dense.weight"), (Shape{1024, 4096}));
  const ModelSpec m = load_model("bert-large", 0);
  EXPECT_THAT(
      hugging_face_names(m, m.groups[3].tensors[1]),
      testing::ElementsAre("bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta"));
}

TEST(HuggingFace, GoesThereAndBack) {
  for (const Family family : {Family::gpt, Family::bert}) {
    for (const bool tied : {true, false}) {
      const ModelSpec m = small(family, tied);
      const reference::Weights weights = Ranks(m, 2, DType::f32, 3).weights();
      for (Id g = 0; g < m.groups.size(); ++g) {
        for (std::size_t t = 0; t < m.groups[g].tensors.size(); ++t) {
          const at::Tensor& ours = weights.at(m.groups[g].tensors[t].name);
          const at::Tensor theirs = to_hugging_face(m, g, t, ours);
          EXPECT_TRUE(at::equal(from_hugging_face(m, g, t, theirs), ours))
              << m.groups[g].tensors[t].name;
          EXPECT_THROW(from_hugging_face(m, g, t, at::cat({theirs, theirs})), InputError);
        }
      }
    }
  }
}

// Conv1D is x W + b, and its c_attn holds query, key and value side by side, heads within each.
TEST(HuggingFace, MeansTheSameProduct) {
  const ModelSpec m = small(Family::gpt);
  const reference::Weights weights = Ranks(m, 1, DType::f32, 3).weights();
  const at::Tensor& ours = weights.at("transformer.h.0.attn.c_attn.weight");  // [3, heads, d, h]
  const at::Tensor theirs = to_hugging_face(m, m.segments[1].groups[0], 0, ours);
  const at::Tensor x = at::randn({5, m.hidden});
  const at::Tensor key = at::matmul(x, theirs).chunk(3, 1)[1].view({5, m.heads, -1});
  EXPECT_TRUE(at::allclose(key, at::einsum("nh,adh->nad", {x, ours[1]}), 1e-5, 1e-6));
  const at::Tensor& project = weights.at("transformer.h.0.attn.c_proj.weight");  // [h, heads, d]
  EXPECT_TRUE(at::allclose(
      at::matmul(key.flatten(1), to_hugging_face(m, m.segments[1].groups[0], 2, project)),
      at::einsum("nad,had->nh", {key, project}), 1e-5, 1e-6));
}

}  // namespace
}  // namespace rehearse
