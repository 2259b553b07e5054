// Launches of attention, against closed forms: what written attention moves, when the fused softmax
// falls back, what is recomputed, and what is kept for backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/launches.h"
#include "tests/engine/model/launch_totals.h"

namespace rehearse::model {
namespace {

TEST(Launches, OfWrittenAttentionHaveTheFlopsOfFusedAttention) {
  for (const Family family : {Family::gpt, Family::bert, Family::llama})
    for (const int tp : {1, 2, 4})
      for (const Pass pass : {Pass::forward, Pass::recompute, Pass::backward}) {
        const double dropout = family == Family::llama ? 0 : 0.1;  // llama has none
        const Total fused = total(gpt(dropout, {}, family), attention, pass, tp);
        const Total apart = total(gpt(dropout, written(), family), attention, pass, tp);
        EXPECT_DOUBLE_EQ(apart.flops, fused.flops);
        EXPECT_GT(apart.bytes, fused.bytes);
        // One kernel becomes two products, four in backward.
        EXPECT_EQ(apart.products, fused.products + (pass == Pass::backward ? 4 : 2));
      }
}

TEST(Launches, OfWrittenAttentionMoveTheScores) {
  const auto beyond_fused = [](double dropout, Pass pass, const software::Software& how,
                               DType dtype = DType::bf16) {
    return total(gpt(dropout, how), attention, pass, 1, dtype).bytes -
           total(gpt(dropout), attention, pass, 1, dtype).bytes;
  };
  software::Software how = written();
  // In 16 bits: softmax reads and writes 2 each. Dropout reads 2, writes 2 and a mask of 1.
  EXPECT_DOUBLE_EQ(beyond_fused(0, Pass::forward, how), 4 * scores);
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::forward, how), (4 + 5) * scores);
  // Backward of softmax reads its result and the gradient and writes a gradient; dropout as before.
  EXPECT_DOUBLE_EQ(beyond_fused(0, Pass::backward, how), 6 * scores);
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::backward, how), (6 + 5) * scores);
  // Apart: scale, mask and softmax read and write each; backward has no kernel for the mask.
  how.softmax = software::Softmax::separate;
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::forward, how), (3 * 4 + 5) * scores);
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::backward, how), (6 + 4 + 5) * scores);
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::forward, how, DType::f32), (3 * 8 + 9) * scores);
  // In f32 between two conversions of 2 + 4 bytes.
  how.softmax_f32 = true;
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::forward, how), (6 + 3 * 8 + 6 + 5) * scores);
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::backward, how), (6 + 12 + 8 + 6 + 5) * scores);
  // f32 needs no conversion.
  EXPECT_DOUBLE_EQ(beyond_fused(0.1, Pass::forward, how, DType::f32), (3 * 8 + 9) * scores);
}

/// The scores that the products write and read are in the products' own bytes: two products of
/// forward have 2 + 2 bytes per score in 16 bits, so forward with dropout moves 4 + 9 = 13.
TEST(Launches, OfWrittenAttentionMoveThirteenBytesPerScoreWithTheProducts) {
  const ModelSpec m = gpt(0.1, written());
  double bytes = 0;
  for (const Launch& l : launches_of(m, attention, Pass::forward, samples, 1, DType::bf16)) {
    const bool of_scores = l.kind == Launch::Kind::memory ? l.bytes >= scores : l.batch > 1;
    if (of_scores) bytes += l.bytes;
  }
  // q, k, v and the context: (tokens, hidden) each, read or written once.
  EXPECT_DOUBLE_EQ(bytes, 13 * scores + 4 * tokens * hidden * 2);
}

TEST(Launches, TheFusedSoftmaxFallsBackWhereItsMultipleDoesNotFit) {
  software::Software how = written();
  how.softmax_multiple = 4, how.softmax_f32 = true;
  software::Software apart = how;
  apart.softmax = software::Softmax::separate;
  // 2 samples x 16 heads / tp: 32, 16, 8, 4 fit, 2 does not. With 3 samples 3 x 2 does not.
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const int tp : {1, 2, 4, 8}) {
      EXPECT_LT(total(gpt(0.1, how), attention, pass, tp).kernels,
                total(gpt(0.1, apart), attention, pass, tp).kernels)
          << tp;
      software::Software any = how;
      any.softmax_multiple = 1;
      EXPECT_EQ(total(gpt(0.1, how), attention, pass, tp).bytes,
                total(gpt(0.1, any), attention, pass, tp).bytes);
    }
    for (const auto& [tp, batch] : {std::pair{16, 2}, {8, 3}}) {
      const Total fallen = total(gpt(0.1, how), attention, pass, tp, DType::bf16, batch);
      const Total separate = total(gpt(0.1, apart), attention, pass, tp, DType::bf16, batch);
      EXPECT_EQ(fallen.kernels, separate.kernels);
      EXPECT_EQ(fallen.bytes, separate.bytes);
    }
  }
}

TEST(Launches, RecomputedScoresAddExactlyTheirKernelsToBackward) {
  for (const double dropout : {0.0, 0.1}) {
    software::Software how = written(), again = how;
    again.recompute_scores = true;
    const ModelSpec plain = gpt(dropout, how), recomputed = gpt(dropout, again);
    EXPECT_EQ(total(recomputed, attention, Pass::forward).kernels,
              total(plain, attention, Pass::forward).kernels);
    const Total before = total(plain, attention, Pass::backward);
    const Total after = total(recomputed, attention, Pass::backward);
    // One product q k^T, softmax, and dropout if there is any.
    EXPECT_EQ(after.kernels - before.kernels, dropout > 0 ? 3 : 2);
    EXPECT_DOUBLE_EQ(after.flops - before.flops, 2 * scores * hidden / heads);
    EXPECT_DOUBLE_EQ(after.bytes - before.bytes, (dropout > 0 ? 4 + 5 : 4) * scores);
    EXPECT_EQ(total(recomputed, mlp, Pass::backward).kernels,
              total(plain, mlp, Pass::backward).kernels);
    // In return forward keeps no scores.
    const double kept = dropout > 0 ? 2 + 2 + 1 : 2;
    EXPECT_EQ(saved_bytes(plain, attention, samples, 1, DType::bf16) -
                  saved_bytes(recomputed, attention, samples, 1, DType::bf16),
              static_cast<std::int64_t>(kept * scores));
  }
}

/// FLOPs count as for fused attention; the rate says what FlashAttention 2 leaves out and adds.
TEST(Launches, FlashAttentionSkipsMaskedPairsAndHasFiveProductsInBackward) {
  software::Software flash;
  flash.attention = Attention::flash;
  flash.attention_rate = 0.5;
  const auto rate = [&](Family family, Pass pass) {
    const ModelSpec one = gpt(0, flash, family);
    EXPECT_EQ(total(one, attention, pass).flops, total(gpt(0, {}, family), attention, pass).flops);
    for (const Launch& l : launches_of(one, attention, pass, samples, 1, DType::bf16))
      if (l.kind == Launch::Kind::flash) return l.rate;
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(rate(Family::gpt, Pass::forward), 0.5 * 2);
  EXPECT_DOUBLE_EQ(rate(Family::gpt, Pass::backward), 0.5 * 2 * 4 / 5);
  EXPECT_DOUBLE_EQ(rate(Family::bert, Pass::forward), 0.5);  // no mask
}

/// Korthikanti et al. 2022, eq. 1: a layer keeps 34 s b h + 5 a s^2 b bytes in 16 bits. This
/// program keeps the inputs of attention and mlp, 2 s b h each, as boundary activations, which
/// saved_bytes does not count. And it keeps what the paper neglects: the mean and deviation of each
/// norm, 8 bytes per token. So a layer's saved_bytes are
///
///   34 s b h - 2 x 2 s b h + 2 x 8 s b + 5 a s^2 b
TEST(Launches, KeepTheActivationsOfThePaperIfScoresAreWritten) {
  const ModelSpec m = gpt(0.1, software::load_software("megatron-2021"));
  EXPECT_EQ(saved_bytes(m, attention, samples, 1, DType::f16) +
                saved_bytes(m, mlp, samples, 1, DType::f16),
            static_cast<std::int64_t>((34 - 4) * tokens * hidden + 16 * tokens + 5 * scores));
  // Selective recomputation (section 5): without the scores.
  const ModelSpec selective = gpt(0.1, software::load_software("megatron-2022"));
  EXPECT_EQ(saved_bytes(selective, attention, samples, 1, DType::f16) +
                saved_bytes(selective, mlp, samples, 1, DType::f16),
            static_cast<std::int64_t>((34 - 4) * tokens * hidden + 16 * tokens));
  // Tensor parallelism (eq. 2): s b h (10 + 24 / t + 5 a s / (h t)); the norms' statistics stay.
  for (const int tp : {2, 4, 8})
    EXPECT_EQ(saved_bytes(m, attention, samples, tp, DType::f16) +
                  saved_bytes(m, mlp, samples, tp, DType::f16),
              static_cast<std::int64_t>((10 - 4 + 24.0 / tp) * tokens * hidden + 16 * tokens +
                                        5 * scores / tp));
  // Sequence parallelism as well (eq. 4): everything is divided.
  for (const int tp : {2, 4, 8})
    EXPECT_EQ(saved_bytes(selective, attention, samples, {tp, true}, DType::f16) +
                  saved_bytes(selective, mlp, samples, {tp, true}, DType::f16),
              static_cast<std::int64_t>((34 - 4) * tokens * hidden / tp + 16 * tokens / tp));
}

}  // namespace
}  // namespace rehearse::model
