// FP8 in layers, against closed forms: which products have 8-bit operands, the bytes that their
// conversion moves under either scaling, and what stays in memory.
#include "engine/model/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/launches.h"

namespace rehearse::model {
namespace {

using program::DType;
using program::Pass;
using software::Fp8;

constexpr int seq = 512, hidden = 1024, ffn = 4 * hidden, samples = 2;
constexpr double tokens = double(samples) * seq;
constexpr double weights = 2.0 * hidden * ffn;  // of an MLP
constexpr Id attention = 1, mlp = 2, head = 3;  // segments

ModelSpec gpt(Fp8 scaling, software::Attention how = software::Attention::fused) {
  ModelSpec m = build_model({.name = "test",
                             .layers = 1,
                             .hidden = hidden,
                             .heads = 16,
                             .vocab = 51200,
                             .seq_len = seq,
                             .padded_vocab = 51200});
  m.software.fp8 = scaling;
  m.software.attention = how;
  return m;
}
const TensorSplit eight_bits = TensorSplit(1).in_fp8(true);

std::vector<Launch> launches(const ModelSpec& m, Id segment, Pass pass, const TensorSplit& split,
                             bool first = false) {
  return launches_of(m, segment, pass, samples, split, DType::bf16, {.first = first});
}

/// Bytes of memory-bound kernels beyond those of bf16.
double more_bytes(const ModelSpec& m, Id segment, Pass pass, bool first = false) {
  const auto sum = [&](const TensorSplit& split) {
    double bytes = 0;
    for (const Launch& l : launches(m, segment, pass, split, first))
      if (l.kind == Launch::Kind::memory) bytes += l.bytes;
    return bytes;
  };
  return sum(eight_bits) - sum(1);
}

TEST(Fp8, ProductsOfLinearLayersHaveEightBitOperands) {
  const ModelSpec m = gpt(Fp8::dynamic, software::Attention::written);
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::recompute})
    for (const Id segment : {attention, mlp, head}) {
      SCOPED_TRACE(testing::Message() << "segment " << segment);
      int products = 0, in_fp8 = 0;
      for (const Launch& l : launches(m, segment, pass, eight_bits)) {
        products += l.kind == Launch::Kind::product;
        in_fp8 += l.fp8;
        if (l.fp8) {
          EXPECT_EQ(l.kind, Launch::Kind::product);
          EXPECT_DOUBLE_EQ(l.bytes,
                           l.rows * l.inner + l.inner * l.columns + 2 * l.rows * l.columns);
        }
      }
      const int scores = segment != attention ? 0 : pass == Pass::backward ? 4 : 2;
      EXPECT_EQ(in_fp8, segment == head ? 0 : products - scores);
      EXPECT_TRUE(std::ranges::none_of(launches(m, segment, pass, 1), &Launch::fp8));
    }
}

TEST(Fp8, DynamicScalingReadsEveryOperandTwiceInEveryPass) {
  const ModelSpec m = gpt(Fp8::dynamic);
  const double inputs = tokens * (hidden + ffn), gradients = tokens * (ffn + hidden);
  // Two bytes for the largest element; two and one to convert.
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::forward), 5 * (inputs + weights));
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::recompute), 5 * (inputs + weights));
  // A gradient is written twice.
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::backward), 6 * gradients + 5 * (inputs + weights));
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::backward_input), 5 * (gradients + weights));
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::backward_weight), 5 * (gradients + inputs));
  EXPECT_DOUBLE_EQ(more_bytes(m, head, Pass::forward), 0);
}

TEST(Fp8, DelayedScalingConvertsInOneKernelAndWeightsOnceAStep) {
  const ModelSpec m = gpt(Fp8::delayed);
  // The norm writes a byte less for each element; the input of the second layer is read once and
  // written twice.
  const double forward = -tokens * hidden + 4 * tokens * ffn;
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::forward), forward);
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::forward, true), forward + 4 * weights);
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::recompute, true), forward);
  EXPECT_DOUBLE_EQ(more_bytes(m, mlp, Pass::backward),
                   2 * tokens * hidden + 4 * tokens * (ffn + hidden));
}

TEST(Fp8, DelayedScalingKeepsEightBitInputs) {
  const auto less = [](const ModelSpec& m, Id segment) {
    return static_cast<double>(saved_bytes(m, segment, samples, 1, DType::bf16) -
                               saved_bytes(m, segment, samples, eight_bits, DType::bf16));
  };
  for (const Id segment : {attention, mlp, head}) EXPECT_EQ(less(gpt(Fp8::dynamic), segment), 0);
  EXPECT_EQ(less(gpt(Fp8::delayed), mlp), tokens * (hidden + ffn));
  // Fused attention keeps its output in 16 bits, and the product after it in 8.
  EXPECT_EQ(less(gpt(Fp8::delayed), attention), 0);
  EXPECT_EQ(less(gpt(Fp8::delayed, software::Attention::written), attention), 2 * tokens * hidden);
  EXPECT_EQ(less(gpt(Fp8::delayed), head), 0);
}

TEST(Fp8, OperandsTakeMemory) {
  const ModelSpec dynamic = gpt(Fp8::dynamic), delayed = gpt(Fp8::delayed);
  EXPECT_EQ(fp8_weights(dynamic, mlp, 1), 0);
  EXPECT_EQ(fp8_weights(delayed, mlp, 1), 2 * weights);
  EXPECT_EQ(fp8_weights(delayed, mlp, 2), weights);
  EXPECT_EQ(fp8_weights(delayed, head, 1), 0);
  const double weight = weights / 2;
  EXPECT_EQ(fp8_workspace(dynamic, mlp, Pass::forward, samples, 1), tokens * ffn + weight);
  EXPECT_EQ(fp8_workspace(delayed, mlp, Pass::forward, samples, 1), tokens * ffn);
  EXPECT_EQ(fp8_workspace(delayed, mlp, Pass::backward, samples, 1), 2 * tokens * ffn);
  EXPECT_EQ(fp8_workspace(dynamic, head, Pass::forward, samples, 1), 0);
}

}  // namespace
}  // namespace rehearse::model
