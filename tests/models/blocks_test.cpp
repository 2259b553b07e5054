// Compares blocks with plain autograd: the loss and every gradient, for GPT, BERT and LLaMA, tied
// and not, with and without dropout, with tensor parallelism 1, 2 and 4. Also compares the bytes
// that blocks keep with the engine's count, and checks that rules broken on purpose change the
// gradients.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "engine/base/errors.h"
#include "tests/models/ranks.h"
#include "tests/models/way_of_large_products.h"

namespace rehearse::models {
namespace {

constexpr std::uint64_t seed = 7;

reference::Masks masks_of(const model::ModelSpec& m, const Batch& batch) {
  reference::Masks masks;
  if (!batch.train || m.dropout == 0) return masks;
  const std::vector<std::int64_t> shape = {batch.tokens.size(0), batch.tokens.size(1), m.hidden};
  const auto add = [&](const char* name, Site site, int layer) {
    masks.at[{name, layer}] = mask_tensor(shape, {batch, site, layer, m.dropout}, at::kCPU);
  };
  add("embedding", Site::embedding, -1);
  for (int i = 0; i < m.layers; ++i) {
    add("attention", Site::attention, i);
    add("mlp", Site::mlp, i);
  }
  return masks;
}

struct Case {
  model::Family family = model::Family::gpt;
  bool tied = true;
  double dropout = 0;
  int tp = 1;
  int head_dim = 0;  // 0: hidden / heads
  bool qkv_bias = false, qk_norm = false;
  bool gemma = false;  // all that Gemma 2 has; with tp, what tensor parallelism allows
  int experts = 0;
  bool mixtral = true;  // names, and weights that are divided by their sum
};
model::ModelSpec model_of(const Case& c) {
  model::ModelSpec m = small(c.family, c.tied, c.dropout);
  m.head_dim = c.head_dim;
  m.qkv_bias = c.qkv_bias;
  m.qk_norm = c.qk_norm;
  if (c.experts > 0) {
    m.experts = c.experts;
    m.experts_per_token = 2;
    m.mixtral_names = m.norm_topk = c.mixtral;
    m.router_aux_loss = 0.3;
  }
  return c.gemma ? gemma_of(m, c.tp == 1) : build_model(m);
}
std::ostream& operator<<(std::ostream& out, const Case& c) {
  const auto name = std::array{"gpt", "bert", "llama"}[std::size_t(c.family)];
  return out << name << (c.tied ? "" : " untied") << " dropout " << c.dropout << " tp " << c.tp
             << " head " << c.head_dim << (c.qkv_bias ? " qkv bias" : "")
             << (c.qk_norm ? " qk norm" : "") << (c.gemma ? " gemma" : "") << " experts "
             << c.experts;
}
class Blocks : public testing::TestWithParam<std::tuple<Case, Way>> {
 protected:
  TakeWay taken_{std::get<1>(GetParam())};
};

TEST_P(Blocks, FollowAutograd) {
  const Case c = std::get<0>(GetParam());
  const model::ModelSpec m = model_of(c);
  Ranks ranks(m, c.tp, program::DType::f32, seed);
  const reference::Weights weights = ranks.weights();
  Batch batch = random_batch(m, 3, c.family == model::Family::bert ? 0.2 : 1, seed);
  batch.step = 5;
  batch.first_sample = 11;

  const double loss = ranks.step(batch);
  const reference::Masks masks = masks_of(m, batch);
  const double expected =
      reference::loss_sum(m, weights, batch.tokens, batch.labels, masks).item<double>();
  EXPECT_NEAR(loss / expected, 1, 1e-6);
  const Worst w =
      worst(ranks.gradients(),
            reference::gradients(m, weights, batch.tokens, batch.labels, batch.loss_weight, masks));
  EXPECT_LE(w.difference, 3e-6) << w.name;

  // Evaluation has no dropout, and forward without `saved` computes the same loss.
  batch.train = false;
  EXPECT_NEAR(ranks.evaluate(batch) /
                  reference::loss_sum(m, weights, batch.tokens, batch.labels).item<double>(),
              1, 1e-6);
}

TEST_P(Blocks, AddUpMicroBatches) {
  const Case c = std::get<0>(GetParam());
  model::ModelSpec m = model_of(c);
  m.router_aux_loss = 0;  // a product of two sums over a micro-batch
  Batch all = random_batch(m, 4, c.family == model::Family::bert ? 0.2 : 1, seed);
  Ranks whole(m, c.tp, program::DType::f32, seed), parts(m, c.tp, program::DType::f32, seed);
  const double loss = whole.step(all);
  double sum = 0;
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 3}}) {
    Batch batch = all;
    batch.tokens = all.tokens.narrow(0, first, count);
    batch.labels = all.labels.narrow(0, first, count);
    batch.first_sample = first;
    sum += parts.step(batch);
  }
  EXPECT_NEAR(sum / loss, 1, 1e-6);
  const Worst w = worst(parts.gradients(), whole.gradients());
  EXPECT_LE(w.difference, 3e-6) << w.name;
}

TEST_P(Blocks, HalvesOfABackwardGiveTheSameBits) {
  const Case c = std::get<0>(GetParam());
  const model::ModelSpec m = model_of(c);
  const Batch batch = random_batch(m, 3, c.family == model::Family::bert ? 0.2 : 1, seed);
  for (const program::DType dtype : {program::DType::f32, program::DType::bf16}) {
    Ranks whole(m, c.tp, dtype, seed), halves(m, c.tp, dtype, seed);
    halves.split_backward();
    for (int step = 0; step < 2; ++step)  // the second one adds
      EXPECT_EQ(whole.step(batch), halves.step(batch));
    const reference::Weights a = whole.gradients(), b = halves.gradients();
    for (const auto& [name, gradient] : a) EXPECT_TRUE(at::equal(gradient, b.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Blocks,
    testing::Combine(
        testing::Values(
            Case{model::Family::gpt, true, 0, 1}, Case{model::Family::gpt, true, 0, 2},
            Case{model::Family::gpt, true, 0.1, 4}, Case{model::Family::gpt, false, 0.1, 2},
            Case{model::Family::bert, true, 0, 1}, Case{model::Family::bert, true, 0.1, 2},
            Case{model::Family::bert, true, 0, 4}, Case{model::Family::bert, false, 0.1, 4},
            Case{model::Family::llama, true, 0, 1}, Case{model::Family::llama, false, 0, 2},
            Case{model::Family::llama, false, 0, 4}, Case{model::Family::gpt, true, 0, 2, 8},
            Case{model::Family::bert, true, 0, 2, 20},
            Case{model::Family::llama, true, 0, 1, 16, true},
            Case{model::Family::llama, true, 0, 4, 4, true},
            Case{model::Family::llama, true, 0, 1, 16, false, true},
            Case{model::Family::llama, true, 0, 4, 10, false, true},
            Case{model::Family::llama, true, 0, 1, 10, false, false, true},
            Case{model::Family::llama, false, 0, 1, 10, true, true, true},
            Case{model::Family::llama, true, 0, 4, 10, false, true, true},
            Case{.family = model::Family::llama, .experts = 4},
            Case{.family = model::Family::llama, .tp = 4, .experts = 5, .mixtral = false},
            Case{.family = model::Family::llama, .tp = 2, .qk_norm = true, .experts = 64}),
        testing::Values(Way::by_size, Way::of_the_large)));

TEST(BlocksWindow, HidesOlderTokens) {
  // Longer than the blocks of the fused kernel, so that whole blocks are hidden.
  model::ModelSpec m = small(model::Family::llama);
  m.seq_len = 1100;
  m.layers = 1;
  m.window = 7;
  m = build_model(m);
  Ranks ranks(m, 2, program::DType::f32, seed);
  const reference::Weights weights = ranks.weights();
  const Batch batch = random_batch(m, 1, 1, seed);
  const double loss = ranks.step(batch);
  EXPECT_NEAR(loss / reference::loss_sum(m, weights, batch.tokens, batch.labels).item<double>(), 1,
              1e-6);
  const Worst w = worst(ranks.gradients(), reference::gradients(m, weights, batch.tokens,
                                                                batch.labels, batch.loss_weight));
  EXPECT_LE(w.difference, 3e-6) << w.name;
  model::ModelSpec all = m;
  all.window = 0;
  EXPECT_GT(std::fabs(Ranks(build_model(all), 2, program::DType::f32, seed).step(batch) / loss - 1),
            1e-6);
}

TEST(BlocksLowPrecision, StayNearF32) {
  for (const Case& c : {Case{model::Family::gpt},
                        {model::Family::bert},
                        {model::Family::llama},
                        {.family = model::Family::llama, .tp = 2, .gemma = true}}) {
    for (const auto& [dtype, tolerance] :
         {std::pair{program::DType::bf16, 0.06}, {program::DType::f16, 0.01}}) {
      const model::ModelSpec m = model_of(c);
      Batch batch = random_batch(m, 3, 0.5, seed);
      batch.loss_weight *= dtype == program::DType::f16 ? 1024 : 1;
      Ranks low(m, 2, dtype, seed);
      const reference::Weights weights = low.weights();
      const double loss = low.step(batch);
      const double expected =
          reference::loss_sum(m, weights, batch.tokens, batch.labels).item<double>();
      EXPECT_NEAR(loss / expected, 1, tolerance / 10);
      // Over all tensors together, because the true gradient of a key bias is 0.
      const auto a = low.gradients();
      const auto b =
          reference::gradients(m, weights, batch.tokens, batch.labels, batch.loss_weight);
      double delta = 0, norm = 0;
      for (const auto& [name, g] : b) {
        delta += (a.at(name) - g).square().sum().item<double>();
        norm += g.square().sum().item<double>();
      }
      EXPECT_LE(std::sqrt(delta / norm), tolerance);
      EXPECT_GT(delta, 0);
    }
  }
}

TEST(BlocksLowPrecision, KeepWhatTheEngineCounts) {
  std::vector<Case> cases = {{.family = model::Family::gpt, .head_dim = 8},
                             {.family = model::Family::llama, .head_dim = 16, .qkv_bias = true},
                             {.family = model::Family::llama, .head_dim = 10, .qk_norm = true},
                             {.family = model::Family::llama, .head_dim = 10, .gemma = true},
                             {.family = model::Family::llama, .experts = 4}};
  for (const model::Family family : {model::Family::gpt, model::Family::bert, model::Family::llama})
    for (const bool tied : {true, false}) cases.push_back({family, tied});
  for (const Case& c : cases) {
    const model::ModelSpec m = model_of(c);
    for (const program::DType dtype :
         {program::DType::f32, program::DType::bf16, program::DType::f16}) {
      for (const int tp : {1, 2, 4}) {
        if (m.output_norm && tp > 1) break;
        Ranks ranks(m, tp, dtype, seed);
        ranks.step(random_batch(m, 3, 1, seed));
        for (Id s = 0; s < m.segments.size(); ++s) {
          for (int rank = 0; rank < tp; ++rank) {
            EXPECT_EQ(ranks.saved_bytes(rank)[s], saved_bytes(m, s, 3, tp, dtype))
                << m.segments[s].name << " tp " << tp << " of " << c;
          }
        }
      }
    }
  }
}

TEST(BlocksBroken, Show) {
  const model::ModelSpec m = small(model::Family::gpt);
  const Batch batch = random_batch(m, 3, 1, seed);
  for (const Break broken : {Break::residual_everywhere, Break::no_input_sum,
                             Break::no_stats_gather, Break::head_overwrites}) {
    Ranks ranks(m, 2, program::DType::f32, seed, broken);
    const reference::Weights weights = ranks.weights();
    ranks.step(batch);
    const Worst w = worst(ranks.gradients(), reference::gradients(m, weights, batch.tokens,
                                                                  batch.labels, batch.loss_weight));
    EXPECT_GT(w.difference, 1e-2) << int(broken);
  }
}

TEST(BlocksBroken, RefuseWhatDoesNotFit) {
  const model::ModelSpec m = small(model::Family::gpt);
  EXPECT_THROW(make_block(m, 1, 8, 0, program::DType::f32), InputError);
  EXPECT_THROW(make_block(m, 1, 1, 0, program::DType::i32), InputError);
  const model::ModelSpec gemma = gemma_of(small(model::Family::llama));
  EXPECT_THROW(make_block(gemma, 1, 2, 0, program::DType::f32), InputError);
  EXPECT_THROW(make_parted_attention(gemma, 1, 1, 0, program::DType::f32, 2), InputError);
  const auto block = make_block(m, 1, 1, 0, program::DType::f32);
  const std::vector<at::Tensor> wrong = {at::zeros({10}), at::zeros({10})};
  EXPECT_THROW(block->forward(wrong, at::zeros({1, 20, 48}), {}, nullptr), ProgramError);
}

// A block that does not keep the output of its norm has the same gradients, bit for bit, and keeps
// as many bytes as the engine says. BERT's first layer drops out parts of this output.
TEST(BlocksNorms, AreComputedAgainWithTheSameBits) {
  at::set_num_threads(1);
  for (const Case& c : {Case{model::Family::gpt, true, 0.1},
                        {model::Family::bert, true, 0.1},
                        {model::Family::llama},
                        {model::Family::llama, true, 0, 1, 16, true},
                        {model::Family::llama, true, 0, 1, 10, false, true},
                        {.family = model::Family::llama, .experts = 3}}) {
    const model::ModelSpec m = model_of(c);
    const Batch batch = random_batch(m, 2, 1, seed);
    const at::Tensor x = at::randn({2, m.seq_len, m.hidden}),
                     upstream = at::randn({2, m.seq_len, m.hidden});
    for (Id s = 1; s < m.segments.size(); ++s) {
      std::vector<at::Tensor> params;
      for (const Id g : m.segments[s].groups)
        initialise(m, g, 2, 0, seed, params.emplace_back(at::empty({elements_of(m.groups[g], 2)})));
      const bool accumulate[3] = {};
      const auto run = [&](software::Norms norms, std::vector<at::Tensor>& grads) {
        const auto block = make_block(m, s, 2, 0, program::DType::f32, norms);
        Saved saved;
        at::Tensor out = block->forward(params, x, batch, &saved);
        model::TensorSplit split = {2, true};
        split.halves = norms == software::Norms::kept;
        EXPECT_EQ(saved.bytes(), saved_bytes(m, s, 2, split, program::DType::f32));
        if (m.segments[s].kind == model::SegmentKind::head)
          out = at::stack({out, out});
        else
          out = upstream;
        for (const at::Tensor& p : params) grads.push_back(at::full_like(p, 1e4));
        grads.push_back(block->backward(program::Pass::backward, params, x, saved, out, batch,
                                        grads, accumulate));
      };
      std::vector<at::Tensor> kept, again;
      run(software::Norms::kept, kept);
      run(software::Norms::again, again);
      for (std::size_t i = 0; i < kept.size(); ++i)
        EXPECT_TRUE(at::equal(kept[i], again[i])) << m.segments[s].name << " " << i;
    }
  }
}

// A batch in which no token is counted has loss 0 and gradient 0, not NaN.
TEST(MaskedLm, MayCountNothing) {
  const model::ModelSpec m = small(model::Family::bert);
  Batch batch = random_batch(m, 2, 0, seed);
  Ranks ranks(m, 2, program::DType::f32, seed);
  EXPECT_EQ(ranks.step(batch), 0);
  for (const auto& [name, g] : ranks.gradients()) EXPECT_EQ(g.norm().item<double>(), 0) << name;
}

// Batches with different numbers of counted tokens add up to the gradient of the global mean,
// because each is scaled by the global count.
TEST(MaskedLm, IsNormalisedByTheGlobalCount) {
  const model::ModelSpec m = small(model::Family::bert);
  Batch few = random_batch(m, 2, 0.05, 1), many = random_batch(m, 2, 0.6, 2);
  const auto counted = [](const Batch& b) { return b.labels.ge(0).sum().item<std::int64_t>(); };
  ASSERT_NE(counted(few), counted(many));
  few.loss_weight = many.loss_weight = 1.0 / double(counted(few) + counted(many));
  Ranks ranks(m, 1, program::DType::f32, seed);
  const reference::Weights weights = ranks.weights();
  ranks.step(few);
  ranks.step(many);
  const Worst w = worst(ranks.gradients(),
                        reference::gradients(m, weights, at::cat({few.tokens, many.tokens}),
                                             at::cat({few.labels, many.labels}), few.loss_weight));
  EXPECT_LE(w.difference, 3e-6) << w.name;
}

// Compares the CPU kernels with tensor operations on difficult rows: a shard of padding only,
// widths that are no multiple of the vector length, large logits, an infinite logit.
TEST(CrossEntropy, KernelsDoWhatTensorOperationsDo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Shard shard : {Shard{0, 0, 53}, Shard{1, 53, 40}, Shard{2, 106, 0},
                              Shard{0, 0, 53, 15}, Shard{1, 53, 40, 15}, Shard{2, 106, 0, 15}}) {
      at::Tensor a = at::randn({7, 53}).mul_(20).to(dtype), b = a.clone();
      const at::Tensor labels = at::randint(0, 93, {7}, at::kLong);
      labels[3].fill_(-100);
      const at::Tensor u = exponentiate(a, labels, shard);
      const at::Tensor v = exponentiate_by_tensors(b, labels, shard, 100);
      EXPECT_TRUE(at::allclose(u, v, 1e-6)) << shard.begin;
      // Rounding errors of capped logits, up to 15, are relative errors of their exponentials.
      const double off = dtype != at::kFloat ? 1e-2 : shard.cap > 0 ? 1e-5 : 1e-6;
      EXPECT_TRUE(at::allclose(a, b, off, 1e-30));
      const at::Tensor stats = at::rand({3, 7, 3}).add_(1);
      stats.select(0, shard.index).copy_(u);
      stats.select(2, 0).clamp_(-1e4);
      // A loss scale is a number of the device. 0.25 as one factor or as two: the same bits.
      const at::Tensor scale = at::full({1}, 1024.0F), c = a.clone();
      to_gradient(a, stats, labels, shard, 0.25, {});
      to_gradient(c, stats, labels, shard, 0.25 / 1024, scale);
      EXPECT_TRUE(at::equal(a, c));
      to_gradient_by_tensors(b, stats, labels, shard, 0.25 / 1024, scale, 100);
      EXPECT_TRUE(at::allclose(a, b, dtype == at::kFloat ? 1e-5 : 1e-2, 1e-6)) << shard.begin;
      EXPECT_EQ(a[3].abs().max().item<double>(), 0);
    }
  }
  const at::Tensor overflow = at::zeros({2, 53});
  overflow[1][5].fill_(std::numeric_limits<float>::infinity());
  const at::Tensor stats = exponentiate(overflow, at::zeros({2}, at::kLong), {0, 0, 53});
  EXPECT_EQ(stats[0][1].item<float>(), 53);
  EXPECT_FALSE(std::isfinite(stats[1][1].item<float>()));
}

}  // namespace
}  // namespace rehearse::models
