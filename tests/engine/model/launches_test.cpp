// Launches of other software than the default, against closed forms: what is divided, gathered,
// fused and computed again.
#include "engine/model/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/model/launch_totals.h"

namespace rehearse::model {
namespace {

TEST(Launches, SequenceParallelismDividesWhatIsComputedForEachTokenAlone) {
  software::Software how;
  how.residual = software::Residual::fused;
  how.norms = software::Norms::kept;
  for (const Id segment : {attention, mlp})
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Total plain = total(gpt(0.1, how), segment, pass, 4);
      software::Software divided = how;
      divided.divides_tokens = true;
      // Without sequence parallelism nothing changes, and without the key neither.
      EXPECT_DOUBLE_EQ(total(gpt(0.1, divided), segment, pass, 4).bytes, plain.bytes);
      EXPECT_DOUBLE_EQ(total(gpt(0.1, how), segment, pass, {4, true}).bytes, plain.bytes);
      const Total both = total(gpt(0.1, divided), segment, pass, {4, true});
      EXPECT_EQ(both.kernels, plain.kernels);
      EXPECT_DOUBLE_EQ(both.flops, plain.flops);
      // Forward: the norm reads and writes, with 8 bytes a token; dropout and sum move 3 elements
      // and a mask. Backward: dropout 2, bias gradient 1, residual 3, norm 5 and 16 bytes a token.
      const double row = tokens * hidden;
      const double alone = pass == Pass::forward ? row * 2 * 2 + 8 * tokens + row * (3 * 2 + 1)
                                                 : row * 2 * (2 + 1 + 3 + 5) + 16 * tokens;
      EXPECT_NEAR(plain.bytes - both.bytes, alone * 3 / 4, 1e-6 * plain.bytes);
    }
}

TEST(Launches, UnderAutocastTheResidualStreamIsF32AndWeightsAreConverted) {
  for (const bool own_kernels : {false, true}) {
    software::Software plain;
    plain.residual = software::Residual::fused;
    plain.operators = own_kernels ? software::Operators::separate : software::Operators::fused;
    software::Software cast = plain;
    cast.autocast = true;
    const auto more = [&](Pass pass) {
      return total(gpt(0, cast), mlp, pass).bytes - total(gpt(0, plain), mlp, pass).bytes;
    };
    const double row = tokens * hidden, weights = 2.0 * hidden * 4 * hidden;
    // Norm: reads 4 for 2, and writes 4 for 2 where a kernel converts that (6). Sum: 4, 2 and 4
    // bytes for three times 2. Each weight: read in f32, written in bf16.
    EXPECT_DOUBLE_EQ(more(Pass::forward),
                     row * (own_kernels ? 2 + 2 + 6 : 2) + row * 4 + weights * 6);
    // The residual's sum: 12 bytes for 6. Norm: 4 and 4 and 2 bytes for 5, and 4 and 2 for 5; all 4
    // where kernels convert (6), also the result's gradient (6).
    EXPECT_DOUBLE_EQ(more(Pass::backward),
                     row * 6 + row * (own_kernels ? 12 + 8 - 10 + 12 : 10 + 6 - 10));
    EXPECT_EQ(total(gpt(0, cast), mlp, Pass::forward, 1, DType::f32).bytes,
              total(gpt(0, plain), mlp, Pass::forward, 1, DType::f32).bytes);
  }
}

TEST(Launches, WhereEachProductGathersAKernelPutsEachTensorInOrder) {
  software::Software shared;
  shared.qkv_forward = shared.qkv_backward = 3;
  software::Software each = shared;
  each.gathers = software::Gathers::each;
  const auto more = [&](Id segment, Pass pass, TensorSplit split) {
    const Total a = total(gpt(0, shared, Family::llama), segment, pass, split),
                b = total(gpt(0, each, Family::llama), segment, pass, split);
    EXPECT_DOUBLE_EQ(b.bytes - a.bytes, (b.kernels - a.kernels) * 2 * tokens * hidden * 2);
    return b.kernels - a.kernels;
  };
  // Query, key and value; gate and up; one for the result. The same for the gradients.
  EXPECT_EQ(more(attention, Pass::forward, {4, true}), 4);
  EXPECT_EQ(more(attention, Pass::backward, {4, true}), 4);
  EXPECT_EQ(more(mlp, Pass::forward, {4, true}), 3);
  EXPECT_EQ(more(mlp, Pass::backward, {4, true}), 3);
  EXPECT_EQ(more(mlp, Pass::forward, 4), 0) << "nothing is gathered along the sequence";
}

TEST(Launches, HalvesOfABackwardAreTheWhole) {
  for (const Family family : {Family::gpt, Family::bert, Family::llama})
    for (const double dropout : {0.0, family == Family::llama ? 0.0 : 0.1})
      for (const software::Software& how : {software::Software{}, written()}) {
        const ModelSpec m = gpt(dropout, how, family);
        for (Id s = 1; s < m.segments.size(); ++s) {
          const Total whole = total(m, s, Pass::backward),
                      inputs = total(m, s, Pass::backward_input),
                      weights = total(m, s, Pass::backward_weight);
          EXPECT_DOUBLE_EQ(inputs.flops + weights.flops, whole.flops) << m.segments[s].name;
          EXPECT_EQ(inputs.products + weights.products, whole.products);
          // Both apply the dropout mask to the gradient of the output.
          const bool again = dropout > 0 && m.segments[s].kind != SegmentKind::head;
          EXPECT_EQ(inputs.kernels + weights.kernels, whole.kernels + again);
          EXPECT_DOUBLE_EQ(inputs.bytes + weights.bytes,
                           whole.bytes + (again ? 2 * tokens * hidden * 2 : 0));
          // A product's weight gradient has the FLOPs of its forward.
          EXPECT_LT(weights.flops, inputs.flops + 1);
        }
        const Total mlp_weights = total(m, mlp, Pass::backward_weight);
        EXPECT_DOUBLE_EQ(mlp_weights.flops, total(m, mlp, Pass::forward).flops);
      }
}

TEST(Launches, ReductionsAreTheGradientsOfBiasesAndOfNorms) {
  software::Software how;
  how.reductions = 0.25;
  const auto reduced = [&](Family family, Id segment, Pass pass) {
    double bytes = 0;
    for (const Launch& l : launches_of(gpt(0, how, family), segment, pass, samples, 1, DType::bf16))
      if (l.rate == 0.25) bytes += l.bytes;
    return bytes;
  };
  const double row = tokens * hidden * 2, norm = 2.5 * row + 8 * tokens;
  for (const Id segment : {attention, mlp})
    EXPECT_EQ(reduced(Family::gpt, segment, Pass::forward), 0);
  // The output's bias and the norm's weight, and the bias of query, key and value or of the MLP.
  EXPECT_DOUBLE_EQ(reduced(Family::gpt, attention, Pass::backward), (1 + 3) * row + norm);
  EXPECT_DOUBLE_EQ(reduced(Family::gpt, mlp, Pass::backward), (1 + 4) * row + norm);
  EXPECT_DOUBLE_EQ(reduced(Family::llama, mlp, Pass::backward), norm - 4 * tokens);
}

TEST(Launches, SeparateOperatorsMoveMoreBytesInLlamaAlone) {
  software::Software how;
  how.operators = software::Operators::separate;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const auto more = [&](Family family, Id segment) {
      const Total apart = total(gpt(0, how, family), segment, pass),
                  fused = total(gpt(0, {}, family), segment, pass);
      EXPECT_EQ(apart.flops, fused.flops);
      return apart.bytes - fused.bytes;
    };
    EXPECT_EQ(more(Family::gpt, attention), 0);
    EXPECT_EQ(more(Family::gpt, mlp), 0);
    // Bytes of an element. A norm moves 28 in fp32 and 4 elements in place of 2 elements, backward
    // 64 and 7 in place of 2.5; a rotation 16 and 2 in place of 2 elements, of query and key;
    // SwiGLU 5 elements in place of 3, backward 9 in place of 5, and ffn is 4 hidden.
    const bool forward = pass == Pass::forward;
    const double norm = forward ? 28 + 2 * 2 : 64 + 4.5 * 2, statistics = 4 * tokens;
    EXPECT_NEAR(more(Family::llama, attention), tokens * hidden * (norm + 2 * 16) - statistics, 1);
    EXPECT_NEAR(more(Family::llama, mlp),
                tokens * hidden * (norm + 4 * 2 * (forward ? 2 : 4)) - statistics, 1);
  }
}

TEST(Launches, HeadCopiesMoveQueryKeyAndValue) {
  software::Software how = written();
  const Total none = total(gpt(0, how), attention, Pass::forward);
  how.head_copies = 3;
  const Total three = total(gpt(0, how), attention, Pass::forward);
  EXPECT_EQ(three.kernels - none.kernels, 3);
  EXPECT_DOUBLE_EQ(three.bytes - none.bytes, 3 * 2 * tokens * hidden * 2);
  EXPECT_EQ(total(gpt(0, how), attention, Pass::backward).kernels -
                total(gpt(0, written()), attention, Pass::backward).kernels,
            3);
}

TEST(Launches, SeveralProductsShareTheColumnsOfOne) {
  software::Software three;
  three.qkv_forward = three.qkv_backward = 3;
  software::Software one = three;
  one.qkv_forward = one.qkv_backward = 1;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Total apart = total(gpt(0, three), attention, pass);
    const Total together = total(gpt(0, one), attention, pass);
    EXPECT_DOUBLE_EQ(apart.flops, together.flops);
    EXPECT_EQ(apart.products - together.products, pass == Pass::backward ? 4 : 2);
  }
}

/// Forward of an mlp: bias in the product's kernel, in one of its own, or with the activation.
TEST(Launches, BiasAndResidualFuseAsTheSoftwareSays) {
  const double row = tokens * hidden * 2;  // bytes of (tokens, hidden) in 16 bits
  const auto forward = [](const software::Software& how) {
    return total(gpt(0.1, how), mlp, Pass::forward);
  };
  software::Software how;
  const double rest = forward(how).bytes - 3 * row;  // without the residual's kernel
  EXPECT_EQ(forward(how).kernels, 5);
  how.bias = software::Bias::kernel;  // fills (tokens, ffn) before the first product
  EXPECT_DOUBLE_EQ(forward(how).bytes, rest + 3 * row + 4 * row);
  EXPECT_EQ(forward(how).kernels, 6);
  how.bias_activation = true;
  EXPECT_DOUBLE_EQ(forward(how).bytes, rest + 3 * row);
  // One kernel reads the product and the residual, writes the sum, and a mask of a byte.
  how.residual = software::Residual::fused;
  EXPECT_DOUBLE_EQ(forward(how).bytes, rest + 3 * row + row / 2);
  EXPECT_EQ(forward(how).kernels, 5);
  // Bias, dropout and sum are kernels of their own.
  how.residual = software::Residual::separate;
  EXPECT_DOUBLE_EQ(forward(how).bytes, rest + row + 2 * row + row / 2 + 3 * row);
  EXPECT_EQ(forward(how).kernels, 7);
}

TEST(Launches, OfTheLossFollowItsForm) {
  const double logits = tokens * vocab;
  software::Software how;
  const auto bytes = [&](Pass pass, software::CrossEntropy form) {
    how.cross_entropy = form;
    return total(gpt(0, how), head, pass).bytes;
  };
  using software::CrossEntropy;
  const double rest = bytes(Pass::forward, CrossEntropy::fused) - 2 * logits * 2 - 12 * tokens;
  const double back = bytes(Pass::backward, CrossEntropy::fused) - 2 * logits * 2;
  // Conversion to f32, then log-softmax reads and writes, or five kernels of Megatron-LM.
  EXPECT_DOUBLE_EQ(bytes(Pass::forward, CrossEntropy::library), rest + (6 + 8) * logits);
  EXPECT_DOUBLE_EQ(bytes(Pass::forward, CrossEntropy::separate),
                   rest + (6 + 4 + 8 + 8 + 4 + 8) * logits);
  EXPECT_DOUBLE_EQ(bytes(Pass::backward, CrossEntropy::library), back + (12 + 6) * logits);
  EXPECT_DOUBLE_EQ(bytes(Pass::forward, CrossEntropy::unconverted), rest + 2 * 2 * logits);
  EXPECT_DOUBLE_EQ(bytes(Pass::backward, CrossEntropy::unconverted), back + 3 * 2 * logits);
  EXPECT_DOUBLE_EQ(bytes(Pass::backward, CrossEntropy::separate), back + (8 + 6) * logits);
  // What backward needs of the logits: the exponentials in their type, or the softmax in f32.
  how.cross_entropy = CrossEntropy::fused;
  const std::int64_t fused = saved_bytes(gpt(0, how), head, samples, 1, DType::bf16);
  how.cross_entropy = CrossEntropy::separate;
  EXPECT_EQ(saved_bytes(gpt(0, how), head, samples, 1, DType::bf16) - fused,
            static_cast<std::int64_t>(2 * logits));
}

TEST(Launches, BackwardComputesNormsAgainWhereForwardKeepsNone) {
  using software::Norms;
  const auto of = [](Norms norms) {
    software::Software how;
    how.norms = norms;
    return gpt(0, how);
  };
  const ModelSpec kept = of(Norms::kept), again = of(Norms::again), divided = of(Norms::divided);
  const double row = 2 * tokens * hidden, norm = 2 * row + 8 * tokens;
  TensorSplit halves = {4, true};
  halves.halves = true;
  for (const Id segment : {attention, mlp, head}) {
    const auto bytes = [&](const ModelSpec& m, TensorSplit split) {
      return static_cast<double>(saved_bytes(m, segment, samples, split, DType::bf16));
    };
    EXPECT_EQ(bytes(kept, {4, true}) - bytes(again, {4, true}), row);
    EXPECT_EQ(bytes(kept, {4, true}) - bytes(divided, {4, true}), row * 3 / 4);
    // Without sequence parallelism, and for the second half of a backward, they are kept.
    for (const TensorSplit split : {TensorSplit{4}, halves})
      for (const ModelSpec* m : {&again, &divided}) EXPECT_EQ(bytes(*m, split), bytes(kept, split));
    // Attention in parts, whose tensors are exchanged, does not compute them again.
    EXPECT_EQ(bytes(kept, {4, true, 2}) - bytes(again, {4, true, 2}),
              segment == attention ? 0 : row / 2);

    const auto backward = [&](const ModelSpec& m, Pass pass) {
      return total(m, segment, pass, {4, true});
    };
    const Total more = backward(again, Pass::backward), less = backward(kept, Pass::backward);
    EXPECT_EQ(more.kernels, less.kernels + 1);
    EXPECT_NEAR(more.bytes - less.bytes, norm, 1e-6 * less.bytes);
    EXPECT_DOUBLE_EQ(backward(divided, Pass::backward).bytes, less.bytes);
    for (const Pass pass : {Pass::forward, Pass::backward_input, Pass::backward_weight})
      EXPECT_DOUBLE_EQ(backward(again, pass).bytes, backward(kept, pass).bytes);
  }
}

TEST(Launches, OfProductsNameTheirOperandsBytes) {
  for (const Launch& l : launches_of(gpt(), mlp, Pass::forward, samples, 1, DType::f32))
    if (l.kind == Launch::Kind::product) {
      EXPECT_DOUBLE_EQ(l.bytes,
                       4 * l.batch * (l.rows * l.inner + l.inner * l.columns + l.rows * l.columns));
    }
}

}  // namespace
}  // namespace rehearse::model
