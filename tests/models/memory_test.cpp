// Measures what blocks allocate with a counting allocator: beyond what forward keeps and what a
// pass returns, a few activations at most, and nothing of the logits' size but the logits.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/link/workspace.h"
#include "tests/models/counting_allocator.h"
#include "tests/models/ranks.h"

namespace rehearse::models {
namespace {

class Memory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static CountingAllocator counting;
    previous = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting, 1);
  }
  static void TearDownTestSuite() { c10::SetCPUAllocator(previous, 1); }
  static c10::Allocator* previous;
};
c10::Allocator* Memory::previous = nullptr;

/// Peak bytes of each pass, beyond what was allocated before the pass and what remains after it.
struct Used {
  std::int64_t forward = 0, backward = 0;
  std::int64_t inputs = 0, weights = 0;  // the halves of backward
};

Used run(const model::ModelSpec& m, Id segment, int samples, program::DType dtype) {
  const auto options = at::TensorOptions().dtype(scalar_type(dtype));
  std::vector<at::Tensor> params, grads;
  for (const Id group : m.segments[segment].groups) {
    params.push_back(at::empty({elements_of(m.groups[group], 1)}, options));
    initialise(m, group, 1, 0, 1, params.back());
    grads.push_back(at::empty_like(params.back()));
  }
  const Batch batch = random_batch(m, samples, 1, 1);
  const auto block = make_block(m, segment, 1, 0, dtype);
  const bool accumulate[] = {false, false, false};
  const bool first = m.segments[segment].kind == model::SegmentKind::embedding;
  const at::Tensor x =
      first ? at::Tensor() : at::randn({samples, m.seq_len, m.hidden}).to(options.dtype());
  const bool last = m.segments[segment].kind == model::SegmentKind::head;
  const at::Tensor upstream = at::randn({samples, m.seq_len, m.hidden}).to(options.dtype());
  Used used;
  Saved saved;
  CountingAllocator::restart_peak();
  std::int64_t before = CountingAllocator::live();
  const at::Tensor out = block->forward(params, x, batch, &saved);
  EXPECT_EQ(CountingAllocator::live() - before,
            saved.bytes() + static_cast<std::int64_t>(out.nbytes()));
  used.forward = CountingAllocator::peak() - CountingAllocator::live();
  CountingAllocator::restart_peak();
  before = CountingAllocator::live();
  at::Tensor grad =
      block->backward(program::Pass::backward, params, x, saved, last ? out.unsqueeze(0) : upstream,
                      batch, grads, {accumulate, grads.size()});
  used.backward =
      CountingAllocator::peak() - before - (first ? 0 : static_cast<std::int64_t>(grad.nbytes()));
  EXPECT_EQ(saved.bytes(), 0);
  if (first) return used;
  const auto half = [&](program::Pass pass, const at::Tensor& input, const at::Tensor& above) {
    std::vector<at::Tensor> computed(grads.size());
    const auto& groups = m.segments[segment].groups;
    for (const Id group : gradients_of(m, segment, pass)) {
      const auto at = std::ranges::find(groups, group) - groups.begin();
      computed[static_cast<std::size_t>(at)] = grads[static_cast<std::size_t>(at)];
    }
    grad = at::Tensor();
    CountingAllocator::restart_peak();
    before = CountingAllocator::live();
    grad = block->backward(pass, params, input, saved, above, batch, computed,
                           {accumulate, grads.size()});
    return CountingAllocator::peak() - before -
           (grad.defined() ? static_cast<std::int64_t>(grad.nbytes()) : 0);
  };
  const at::Tensor again = block->forward(params, x, batch, &saved);
  const std::int64_t kept = saved.bytes();
  used.inputs = half(program::Pass::backward_input, x, last ? again.unsqueeze(0) : upstream);
  EXPECT_EQ(saved.bytes(), kept);
  used.weights = half(program::Pass::backward_weight, {}, last ? at::Tensor() : upstream);
  EXPECT_EQ(saved.bytes(), 0);
  return used;
}

/// Limits of `Used` in units of one activation, (B, T, H): samples, sequence length, hidden.
struct Limit {
  double forward = 0, backward = 0;
};
Limit limit_of(model::SegmentKind kind, double dropout, program::DType dtype) {
  Limit limit;
  switch (kind) {
    case model::SegmentKind::embedding:
      limit.backward = 0.3;  // positions
      break;
    case model::SegmentKind::attention:
      limit.backward = 3.2;  // gradients of query, key and value
      break;
    case model::SegmentKind::mlp:
    case model::SegmentKind::head:
      limit.backward = 0.02;
      break;
  }
  limit.forward = 0.02;
  if (dropout > 0 && kind != model::SegmentKind::head) limit.backward += 1;  // the masked gradient
  if (dtype != program::DType::f32) {
    // oneDNN copies operands into its own order; rows in f32. On processors with AMX, LibTorch's
    // attention also packs blocks of keys and values.
    limit.forward += 1.2;
    limit.backward += 2.2;
  } else if (kind != model::SegmentKind::embedding) {  // panels of operands that oneDNN packs
    limit.forward += 0.4;
    limit.backward += 0.4;
  }
  return limit;
}

TEST_F(Memory, HoldsWhatItKeepsAndLittleMore) {
  at::set_num_threads(1);
  using Of = std::tuple<model::Family, int, bool, bool>;
  for (const auto& [family, head_dim, qk_norm, gemma] : {Of{model::Family::gpt, 64, false, false},
                                                         {model::Family::bert, 64, false, false},
                                                         {model::Family::llama, 64, false, false},
                                                         {model::Family::llama, 160, false, false},
                                                         {model::Family::llama, 32, false, false},
                                                         {model::Family::llama, 96, true, false},
                                                         {model::Family::llama, 64, false, true}}) {
    for (const auto& [drop, dtype] : {std::pair{0.0, program::DType::f32},
                                      {0.1, program::DType::f32},
                                      {0.1, program::DType::bf16}}) {
      const bool llama = family == model::Family::llama;
      const double dropout = llama ? 0 : drop;
      model::ModelSpec m;
      m.family = family;
      m.layers = 1;
      m.hidden = 256;
      m.heads = 4;
      m.kv_heads = llama ? 2 : 4;
      m.head_dim = head_dim;
      m.qk_norm = qk_norm;
      m.vocab = 8192;  // logits are 32 activations
      m.seq_len = 128;
      m.dropout = dropout;
      m = gemma ? gemma_of(m) : build_model(m);
      const int samples = 4;
      const double activation = double(samples) * m.seq_len * m.hidden * double(size_of(dtype));
      for (Id s = 0; s < m.segments.size(); ++s) {
        const Used used = run(m, s, samples, dtype);
        Limit limit = limit_of(m.segments[s].kind, dropout, dtype);
        if (llama) limit.backward += 1;  // the gradients of some of the grouped queries
        if (const double wide = head_dim / 64.0;
            wide > 1 && m.segments[s].kind == model::SegmentKind::attention)
          limit.forward *= 1.05 * wide, limit.backward *= 1.05 * wide;
        EXPECT_LE(double(used.forward) / activation, limit.forward) << m.segments[s].name;
        EXPECT_LE(double(used.backward) / activation, limit.backward) << m.segments[s].name;
        if (dtype != program::DType::f32) continue;
        const auto planned = [&](program::Pass pass) {
          return double(link::workspace_bytes(m, s, pass, samples, 1, dtype)) / activation;
        };
        // On some processors oneDNN packs panels of operands in addition; the limits above hold.
        EXPECT_GE(double(used.forward) / activation, planned(program::Pass::forward))
            << m.segments[s].name;
        const model::SegmentKind kind = m.segments[s].kind;
        if (kind != model::SegmentKind::embedding) {
          const double inputs = double(used.inputs) / activation,
                       weights = double(used.weights) / activation,
                       planned_inputs = planned(program::Pass::backward_input),
                       planned_weights = planned(program::Pass::backward_weight);
          EXPECT_GE(inputs, planned_inputs - 0.1) << m.segments[s].name;
          EXPECT_LE(inputs, planned_inputs + 0.5) << m.segments[s].name;
          EXPECT_GE(weights, planned_weights - 0.1) << m.segments[s].name;
          // oneDNN packs panels of both operands; the gradient of the input, which the whole
          // backward has too, took more.
          EXPECT_LE(weights, planned_weights + 1.5) << m.segments[s].name;
        }
        if (kind == model::SegmentKind::embedding || kind == model::SegmentKind::attention) {
          EXPECT_NEAR(double(used.backward) / activation, planned(program::Pass::backward), 0.1)
              << m.segments[s].name;
        } else {
          EXPECT_EQ(planned(program::Pass::backward), 0) << m.segments[s].name;
        }
      }
    }
  }
}

// Experts hold the rows of one expert at a time, at most as many as there are tokens.
TEST_F(Memory, OfExpertsHoldsWhatOneOfThemReads) {
  at::set_num_threads(1);
  for (const int experts : {2, 8}) {
    model::ModelSpec m = small(model::Family::llama);
    m.layers = 1;
    m.hidden = 256;
    m.ffn = 192;
    m.seq_len = 128;
    m.head_dim = 0;
    m.experts = experts;
    m.experts_per_token = 2;
    m = build_model(m);
    constexpr Id mlp = 2;
    const Used used = run(m, mlp, 4, program::DType::f32);
    // With two experts, each has all tokens. oneDNN packs panels of operands in addition, for the
    // gradients of weights of both.
    const double activation = 4.0 * m.seq_len * m.hidden * 4;
    for (const auto& [bytes, pass] : {std::pair{used.forward, program::Pass::forward},
                                      {used.backward, program::Pass::backward},
                                      {used.inputs, program::Pass::backward_input},
                                      {used.weights, program::Pass::backward_weight}}) {
      const double planned =
          double(link::workspace_bytes(m, mlp, pass, 4, 1, program::DType::f32)) / activation;
      const double most = experts > 2 ? 0 : pass == program::Pass::backward_weight ? 1.5 : 0.5;
      EXPECT_LE(double(bytes) / activation, planned + most) << experts << " " << int(pass);
      if (experts == 2) {
        EXPECT_GE(double(bytes) / activation, planned - 0.3) << int(pass);
      }
    }
  }
}

}  // namespace
}  // namespace rehearse::models
