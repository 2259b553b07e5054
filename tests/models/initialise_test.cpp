// Initial weights and dropout masks depend on the tensor, element and sample that they belong to,
// not on the mesh or the number of threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/layers.h"
#include "tests/models/ranks.h"

namespace rehearse::models {
namespace {

TEST(Initialise, DoesNotDependOnTensorParallelism) {
  for (const model::Family family : {model::Family::gpt, model::Family::bert}) {
    const model::ModelSpec m = small(family);
    const reference::Weights one = Ranks(m, 1, program::DType::f32, 3).weights();
    for (const int tp : {2, 4}) {
      for (const auto& [name, tensor] : Ranks(m, tp, program::DType::f32, 3).weights()) {
        EXPECT_TRUE(at::equal(tensor, one.at(name))) << name << " tp " << tp;
      }
    }
    const reference::Weights other = Ranks(m, 1, program::DType::f32, 4).weights();
    const std::string name = m.groups[0].tensors[0].name;
    EXPECT_FALSE(at::equal(other.at(name), one.at(name)));
  }
}

TEST(Initialise, DoesNotDependOnThreads) {
  const model::ModelSpec m = model::load_model("gpt-demo", 0);
  const auto fill = [&](int threads) {
    at::set_num_threads(threads);
    at::Tensor flat = at::empty({elements_of(m.groups[0], 1)});
    initialise(m, 0, 1, 0, 3, flat);
    return flat;
  };
  const at::Tensor two = fill(2);
  EXPECT_TRUE(at::equal(fill(1), two));
}

TEST(Initialise, HasThePublishedDistributions) {
  const model::ModelSpec m = model::load_model("gpt-demo", 0);
  const reference::Weights w = Ranks(m, 1, program::DType::f32, 3).weights();
  const at::Tensor& wte = w.at("transformer.wte.weight");
  const double n = double(wte.numel());
  EXPECT_NEAR(wte.mean().item<double>(), 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(wte.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(2 * n));
  const at::Tensor z = wte / 0.02;
  EXPECT_NEAR(z.pow(4).mean().item<double>(), 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(z.abs().gt(1.96).to(at::kFloat).mean().item<double>(), 0.05, 5 * 0.22 / std::sqrt(n));
  const at::Tensor even = z.slice(1, 0, 256, 2).flatten(), odd = z.slice(1, 1, 256, 2).flatten();
  EXPECT_NEAR((even * odd).mean().item<double>(), 0, 5 / std::sqrt(n / 2));
  const at::Tensor& proj = w.at("transformer.h.0.mlp.c_proj.weight");
  EXPECT_NEAR(proj.std().item<double>(), 0.02 / std::sqrt(8), 0.0001);
  EXPECT_EQ(w.at("transformer.h.0.mlp.c_proj.bias").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("transformer.ln_f.weight").min().item<double>(), 1);
}

TEST(Initialise, LeavesPaddingRowsAtZero) {
  const model::ModelSpec m = small(model::Family::gpt);
  const reference::Weights weights = Ranks(m, 4, program::DType::f32, 3).weights();
  const at::Tensor& wte = weights.at("transformer.wte.weight");
  EXPECT_EQ(wte.slice(0, 201).abs().max().item<double>(), 0);
  EXPECT_GT(wte.slice(0, 200, 201).abs().max().item<double>(), 0);
}

TEST(Dropout, KernelsAndTensorOperationsDrawTheSameBits) {
  Batch batch;
  batch.seed = 12345678901234567ULL;
  batch.step = 3;
  batch.first_sample = 1000;
  const DropoutMask mask{batch, Site::mlp, 2, 0.1};
  at::Tensor x = at::ones({3, 17, 53});
  drop(x, mask, {});
  EXPECT_TRUE(at::equal(x, mask_tensor({3, 17, 53}, mask, at::kCPU)));
  at::Tensor y = at::ones({3, 17, 53}, at::kBFloat16);
  drop(y, mask, at::ones({3, 17, 53}, at::kBFloat16));
  EXPECT_TRUE(at::equal(y, (x + 1).to(at::kBFloat16)));
}

TEST(Dropout, DependsOnEverythingInItsKeyAndOnNothingElse) {
  Batch batch;
  const auto draw = [&](Site site, int layer) {
    return mask_tensor({4, 32, 64}, {batch, site, layer, 0.25}, at::kCPU);
  };
  const at::Tensor base = draw(Site::mlp, 2);
  EXPECT_NEAR(base.gt(0).to(at::kFloat).mean().item<double>(), 0.75, 0.02);
  EXPECT_NEAR(base.max().item<double>(), 1 / 0.75, 1e-6);
  const double apart = 2 * 0.25 * 0.75;  // how often two independent masks differ
  const auto differ = [&](const at::Tensor& other) {
    return base.ne(other).to(at::kFloat).mean().item<double>();
  };
  EXPECT_NEAR(differ(draw(Site::attention, 2)), apart, 0.03);
  EXPECT_NEAR(differ(draw(Site::mlp, 3)), apart, 0.03);
  batch.step = 1;
  EXPECT_NEAR(differ(draw(Site::mlp, 2)), apart, 0.03);
  batch.step = 0;
  batch.seed = 1;
  EXPECT_NEAR(differ(draw(Site::mlp, 2)), apart, 0.03);
  batch.seed = 0;
  // Sample 3 of the global batch has the same mask wherever its micro-batch begins.
  batch.first_sample = 2;
  EXPECT_TRUE(at::equal(draw(Site::mlp, 2)[1], base[3]));
}

}  // namespace
}  // namespace rehearse::models
