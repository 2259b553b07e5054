// Mixtures of experts: parameters of published models, work and memory against closed forms, keys
// that do not fit together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/job/identity.h"
#include "engine/model/fp8.h"
#include "tests/engine/model/launch_totals.h"
#include "tests/message_of.h"

namespace rehearse::model {
namespace {

using software::Experts;
using testing::HasSubstr;

constexpr int ffn = 4 * hidden;

ModelSpec mixture(int experts, int chosen, Experts how = Experts::looped) {
  ModelSpec m = gpt(0, {}, Family::llama);
  m.experts = experts;
  m.experts_per_token = chosen;
  m.software.experts = how;
  return build_model(m);
}

TEST(MixtureOfExperts, HasThePublishedParameters) {
  for (const auto& [name, all, active] : {std::tuple{"mixtral-8x7b", 46'702'792'704, 12.9},
                                          {"mixtral-8x22b", 140'620'634'112, 39.2},
                                          {"qwen3-30b-a3b", 30'532'122'624, 3.35},
                                          {"qwen3-235b-a22b", 235'093'634'560, 22.2}}) {
    const ModelSpec m = load_model(name, 0);
    EXPECT_EQ(parameters_of(m), all) << name;
    EXPECT_NEAR(double(parameters_of(m) - idle_parameters_of(m)) / 1e9, active, 0.05) << name;
  }
}

// Each token is multiplied by the weights of its experts and of the router.
TEST(MixtureOfExperts, MultipliesByTheChosenExperts) {
  for (const Experts how : {Experts::looped, Experts::modules, Experts::grouped})
    for (const int chosen : {1, 2, 8}) {
      const ModelSpec m = mixture(8, chosen, how);
      const double forward = 2 * tokens * hidden * (3.0 * chosen * ffn + 8);
      EXPECT_DOUBLE_EQ(total(m, mlp, Pass::forward).flops, forward);
      EXPECT_DOUBLE_EQ(total(m, mlp, Pass::backward).flops, 2 * forward);
      EXPECT_DOUBLE_EQ(
          total(m, mlp, Pass::backward_input).flops + total(m, mlp, Pass::backward_weight).flops,
          2 * forward);
      const double halves = 2 * tokens * hidden * (3.0 * chosen * ffn / 2 + 8);
      EXPECT_DOUBLE_EQ(total(m, mlp, Pass::forward, 2).flops, halves);
    }
  // MFU leaves out the others. N of a dense model has the whole layer, here once.
  const double more = (model_flops(mixture(8, 2), 1) - model_flops(mixture(1, 1), 1)).value;
  EXPECT_DOUBLE_EQ(more, 6.0 * 2 * hidden * (3.0 * ffn + 7));  // two layers; routers
}

TEST(MixtureOfExperts, LaunchesAKernelForEachExpertOrForAll) {
  const auto products = [](Experts how) {
    return total(mixture(8, 2, how), mlp, Pass::forward).products;
  };
  EXPECT_EQ(products(Experts::looped), 1 + 2 * 8);
  EXPECT_EQ(products(Experts::modules), 1 + 2 * 8);
  EXPECT_EQ(products(Experts::grouped), 1 + 2);
  // No more experts than tokens choose.
  EXPECT_EQ(total(mixture(4096, 1), mlp, Pass::forward).products, 1 + 2 * 1024);
}

TEST(MixtureOfExperts, KeepsTheRowsOfItsExperts) {
  const auto kept = [](const ModelSpec& m) {
    return static_cast<double>(saved_bytes(m, mlp, samples, 1, DType::bf16));
  };
  const double dense = kept(mixture(0, 0)), routing = tokens * (4 * 8 + 8 * 2);
  EXPECT_DOUBLE_EQ(kept(mixture(8, 2)), dense + tokens * 3 * ffn * 2 + routing);
  EXPECT_DOUBLE_EQ(kept(mixture(8, 2, Experts::grouped)) - kept(mixture(8, 2)),
                   tokens * 2 * hidden * 2);
  EXPECT_DOUBLE_EQ(kept(mixture(8, 2, Experts::modules)) - kept(mixture(8, 2)),
                   tokens * 4 * hidden * 2);
}

// Of the products of experts, rows and weights are converted; the router has none in FP8.
TEST(MixtureOfExperts, MultipliesInFp8) {
  for (const Experts how : {Experts::looped, Experts::grouped})
    for (const software::Fp8 scaling : {software::Fp8::dynamic, software::Fp8::delayed}) {
      ModelSpec m = mixture(8, 2, how);
      m.software.fp8 = scaling;
      const TensorSplit fp8 = TensorSplit(1).in_fp8(true);
      const auto products = [&](bool in_fp8) {
        double flops = 0;
        for (const Launch& l : launches_of(m, mlp, Pass::forward, samples, fp8, DType::bf16))
          if (l.kind == Launch::Kind::product && l.fp8 == in_fp8) flops += l.flops();
        return flops;
      };
      EXPECT_DOUBLE_EQ(products(true), 2 * tokens * hidden * 3.0 * 2 * ffn);
      EXPECT_DOUBLE_EQ(products(false), 2 * tokens * hidden * 8);
      const bool delayed = scaling == software::Fp8::delayed;
      const double operands = 2 * tokens * (hidden + ffn), weights = 8 * 3.0 * hidden * ffn,
                   passes = delayed ? 1 : 2;
      // dynamic: an operand is read twice. delayed: it is written twice, and weights are new in the
      // first micro-batch alone.
      EXPECT_DOUBLE_EQ(total(m, mlp, Pass::forward, fp8).bytes - total(m, mlp, Pass::forward).bytes,
                       passes * 2 * (operands + (delayed ? 0 : weights)) +
                           (delayed ? 2 * operands : operands + weights));
      EXPECT_EQ(fp8_weights(m, mlp, fp8), delayed ? 2 * weights : 0);
      const double kept = double(saved_bytes(m, mlp, samples, 1, DType::bf16) -
                                 saved_bytes(m, mlp, samples, fp8, DType::bf16));
      EXPECT_EQ(kept, !delayed                  ? 0
                      : how == Experts::grouped ? 2 * tokens * (hidden + ffn)
                                                : 2 * tokens * ffn);
    }
}

TEST(MixtureOfExperts, RefusesKeysThatDoNotFit) {
  const auto said = [](auto change) {
    return test::message_of<InputError>([&] {
      ModelSpec m = mixture(8, 2);
      change(m);
      build_model(m);
    });
  };
  EXPECT_THAT(said([](ModelSpec& m) { m.experts_per_token = 9; }),
              HasSubstr("experts_per_token = 9 must be at least 1 and at most experts = 8"));
  EXPECT_THAT(said([](ModelSpec& m) { m.experts_per_token = 0; }),
              HasSubstr("experts_per_token = 0 must be at least 1"));
  EXPECT_THAT(said([](ModelSpec& m) { m.experts = 0; }),
              HasSubstr("experts_per_token = 2 is of a model with experts"));
  EXPECT_THAT(said([](ModelSpec& m) { m.layers = 200, m.experts = 4096; }),
              HasSubstr("experts = 4096 times layers = 200 must be at most 262144"));
  EXPECT_THAT(
      said([](ModelSpec& m) {
        m.layers = 64, m.experts = 4096, m.ffn = 1 << 23, m.hidden = 1 << 20;
      }),
      HasSubstr("experts = 4096 of 1048576 x 8388608 in 64 layers have 6.9e+18 parameters"));
  EXPECT_THAT(said([](ModelSpec& m) { m.output_norm = true; }),
              HasSubstr("experts = 8 must be 0 with output_norm"));
  EXPECT_THAT(said([](ModelSpec& m) { m.fused_weights = true; }),
              HasSubstr("experts = 8 must be 0 with fused_weights"));
  EXPECT_THAT(said([](ModelSpec& m) { m.family = Family::gpt; }),
              HasSubstr("experts = 8 is llama's alone"));
  EXPECT_THAT(said([](ModelSpec& m) { m.router_aux_loss = -1; }),
              HasSubstr("router_aux_loss = -1 must be at least 0"));
}

// What changes results changes the hash; a dense model has the hash that it had.
TEST(MixtureOfExperts, IsPartOfTheIdentity) {
  const ModelSpec m = mixture(8, 2);
  std::set<std::uint64_t> hashes = {job::hash_of(m), job::hash_of(mixture(0, 0)),
                                    job::hash_of(mixture(8, 3)), job::hash_of(mixture(9, 2)),
                                    job::hash_of(mixture(8, 2, Experts::grouped))};
  for (auto change :
       {+[](ModelSpec& x) { x.norm_topk = false; }, +[](ModelSpec& x) { x.mixtral_names = true; },
        +[](ModelSpec& x) { x.router_aux_loss = 0.01; }}) {
    ModelSpec other = m;
    change(other);
    hashes.insert(job::hash_of(build_model(other)));
  }
  EXPECT_EQ(hashes.size(), 8U);
  EXPECT_THAT(job::describe(m), HasSubstr("8 experts, 2 a token, each feed-forward 4096"));
}

}  // namespace
}  // namespace rehearse::model
