// Attention in parts on the ranks of one process equals attention over the whole sequence: output,
// gradient of the input, gradients of all parameters, for every way to divide and every family.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "models/block.h"

namespace rehearse::models {
namespace {

using model::AttendedBlock;
using program::Cut;
using program::Pass;

constexpr Id attention = 1;
constexpr int samples = 2, tokens = 32;

struct Case {
  model::Family family = model::Family::gpt;
  int ranks = 2;
  bool heads = false;  // exchange of heads; otherwise rings
  Cut cut = Cut::contiguous;
  int head_dim = 8;
  bool qk_norm = false;
  double cap = 0;  // of scores
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << static_cast<int>(c.family) << (c.heads ? " heads" : " ring") << " of " << c.ranks
             << (c.cut == Cut::zigzag ? " zigzag" : "") << " head " << c.head_dim
             << (c.qk_norm ? " qk norm" : "") << (c.cap > 0 ? " capped" : "");
}

model::ModelSpec model_of(const Case& c) {
  return model::build_model({.name = "small",
                             .family = c.family,
                             .layers = 1,
                             .hidden = 64,
                             .heads = 8,
                             .vocab = 100,
                             .seq_len = tokens,
                             .kv_heads = c.family == model::Family::llama ? 4 : 0,
                             .head_dim = c.head_dim,
                             .qkv_bias = c.head_dim != 8,
                             .qk_norm = c.qk_norm,
                             .attention_cap = c.cap});
}

/// The ranks of one sequence, in one process.
class Ranks {
 public:
  Ranks(const Case& c, const model::ModelSpec& model, const std::vector<at::Tensor>& params)
      : c_(c),
        causal_(c.family != model::Family::bert),
        params_(params),
        attention_(make_parted_attention(model, attention, 1, 0, program::DType::f32,
                                         c.heads ? c.ranks : 0)),
        saved_(std::size_t(c.ranks)) {
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::vector<std::int64_t>& positions = positions_.emplace_back();
      for (const model::TokenRun& run : model::tokens_of(tokens, c.ranks, rank, c.cut))
        for (std::int64_t i = 0; i < run.size; ++i) positions.push_back(run.begin + i);
      Batch& batch = batches_.emplace_back();
      batch.positions = positions;
      batch.tokens = at::zeros({samples, tokens / c.ranks}, at::kLong);
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    input_ = input;
    each([&](std::size_t r) { sources_.push_back(project(r)); });
    if (c_.heads) sources_ = exchanged(sources_);
    std::vector<at::Tensor> results;
    each([&](std::size_t r) {
      for (int step = 0; step < c_.ranks; ++step) {
        const std::size_t owner = c_.heads ? r : (r + std::size_t(c_.ranks - step)) % saved_.size();
        const AttendedBlock block = block_of(r, owner);
        if (c_.heads) {
          results.push_back(attention_->attend(sources_[r], block, batches_[r], saved_[r]));
          break;
        }
        if (!block.empty()) attention_->attend(sources_[owner], block, batches_[r], saved_[r]);
      }
    });
    heads_ = results;
    attended_ = c_.heads ? exchanged(results) : std::vector<at::Tensor>(saved_.size());
    const at::Tensor out = at::empty_like(input);
    each([&](std::size_t r) {
      put(out, r,
          attention_->output(params_, local(input, r), attended_[r], batches_[r], saved_[r]));
    });
    return out;
  }

  /// Adds to `grads`. Returns the gradient of the input.
  at::Tensor backward(const at::Tensor& grad, std::vector<at::Tensor>& grads) {
    std::vector<at::Tensor> d;
    each([&](std::size_t r) {
      d.push_back(attention_->output_backward(params_, local(grad, r), batches_[r]));
    });
    const std::vector<at::Tensor> sources = c_.heads ? through_heads(d) : around_ring(d);
    const at::Tensor grad_input = at::empty_like(grad);
    const std::array<bool, 2> add{true, true};
    each([&](std::size_t r) {
      put(grad_input, r,
          attention_->project_backward(params_, local(input_, r), saved_[r], local(grad, r),
                                       attended_[r], sources[r], batches_[r], grads, add));
    });
    return grad_input;
  }

 private:
  template <class F>
  void each(F f) {
    for (std::size_t r = 0; r < saved_.size(); ++r) f(r);
  }
  at::Tensor project(std::size_t r) {
    return attention_->project(params_, local(input_, r), batches_[r], saved_[r]);
  }
  at::Tensor local(const at::Tensor& whole, std::size_t r) const {
    return at::index_select(whole, 1, at::tensor(batches_[r].positions));
  }
  void put(const at::Tensor& whole, std::size_t r, const at::Tensor& part) const {
    whole.index_copy_(1, at::tensor(batches_[r].positions), part);
  }
  AttendedBlock block_of(std::size_t r, std::size_t owner) const {
    return model::attended_block(tokens / c_.ranks, int(r), int(owner), c_.cut, causal_);
  }
  /// An all-to-all.
  std::vector<at::Tensor> exchanged(const std::vector<at::Tensor>& sent) const {
    std::vector<at::Tensor> received;
    for (std::size_t r = 0; r < sent.size(); ++r) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& from : sent) parts.push_back(from.view({c_.ranks, -1})[int(r)]);
      received.push_back(at::cat(parts));
    }
    return received;
  }
  std::vector<at::Tensor> through_heads(const std::vector<at::Tensor>& d) {
    const std::vector<at::Tensor> received = exchanged(d);
    std::vector<at::Tensor> sources;
    each([&](std::size_t r) {
      sources.push_back(at::empty_like(sources_[r]));
      attention_->attend_backward(
          sources_[r], {}, batches_[r], saved_[r],
          {.output = heads_[r], .grad = received[r], .source = sources.back()});
    });
    return exchanged(sources);
  }
  std::vector<at::Tensor> around_ring(const std::vector<at::Tensor>& d) {
    std::vector<at::Tensor> queries, keys;
    each([&](std::size_t r) {
      queries.push_back(at::zeros_like(d[r]).view(-1));
      keys.push_back(at::zeros_like(sources_[r]).view(-1));
    });
    each([&](std::size_t r) {
      each([&](std::size_t owner) {
        const at::Tensor part = at::full_like(keys[owner], 7);  // to be overwritten
        attention_->attend_backward(
            sources_[owner], block_of(r, owner), batches_[r], saved_[r],
            {.grad = d[r].view(-1), .query = queries[r], .add = true, .source = part});
        keys[owner].add_(part);
      });
    });
    std::vector<at::Tensor> sources;
    each([&](std::size_t r) { sources.push_back(at::cat({queries[r], keys[r]})); });
    return sources;
  }

  const Case c_;
  const bool causal_;
  const std::vector<at::Tensor>& params_;
  std::unique_ptr<PartedAttention> attention_;
  std::vector<Saved> saved_;
  std::vector<std::vector<std::int64_t>> positions_ = {};  // of each rank's batch
  std::vector<Batch> batches_ = {};
  std::vector<at::Tensor> sources_ = {}, heads_ = {}, attended_ = {};
  at::Tensor input_ = {};
};

class Parted : public testing::TestWithParam<Case> {};

TEST_P(Parted, AttentionIsThatOfTheWholeSequence) {
  const model::ModelSpec model = model_of(GetParam());
  at::manual_seed(1);
  std::vector<at::Tensor> params, grads, parted_grads;
  for (const Id group : model.segments[attention].groups) {
    params.push_back(at::randn({elements_of(model.groups[group], 1)}).mul_(0.3));
    grads.push_back(at::zeros_like(params.back()));
    parted_grads.push_back(at::zeros_like(params.back()));
  }
  const at::Tensor input = at::randn({samples, tokens, model.hidden});
  const at::Tensor grad = at::randn_like(input);
  Batch batch;
  batch.tokens = at::zeros({samples, tokens}, at::kLong);
  Saved saved;
  const auto block = make_block(model, attention, 1, 0, program::DType::f32);
  const at::Tensor out = block->forward(params, input, batch, &saved);
  const std::array<bool, 2> add{true, true};
  const at::Tensor grad_input =
      block->backward(Pass::backward, params, input, saved, grad, batch, grads, add);

  Ranks ranks(GetParam(), model, params);
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sub(b).norm().item<double>() / b.norm().item<double>();
  };
  EXPECT_LT(near(ranks.forward(input), out), 1e-5);
  EXPECT_LT(near(ranks.backward(grad, parted_grads), grad_input), 1e-5);
  for (std::size_t i = 0; i < grads.size(); ++i)
    EXPECT_LT(near(parted_grads[i], grads[i]), 1e-5) << "group " << i;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const model::Family family : {model::Family::gpt, model::Family::llama, model::Family::bert})
    for (const int ranks : {2, 4}) {
      out.push_back({family, ranks, true});
      out.push_back({family, ranks, false});
      if (family != model::Family::bert) out.push_back({family, ranks, false, Cut::zigzag});
    }
  // LLaMA with heads of another size than hidden / heads, and with biases as Qwen 2 has them.
  out.push_back({model::Family::llama, 2, true, Cut::contiguous, 12});
  out.push_back({model::Family::llama, 2, false, Cut::zigzag, 12});
  out.push_back({model::Family::llama, 2, true, Cut::contiguous, 12, true});
  out.push_back({model::Family::llama, 4, false, Cut::contiguous, 12, true});
  out.push_back({model::Family::llama, 2, true, Cut::contiguous, 8, false, 0.01});
  out.push_back({model::Family::llama, 4, false, Cut::zigzag, 8, false, 0.01});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Ways, Parted, testing::ValuesIn(cases()));

}  // namespace
}  // namespace rehearse::models
