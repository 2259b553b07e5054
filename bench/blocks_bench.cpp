// Compares forward and backward of GPT-2 124M's segments (2 samples of 256 tokens) by our blocks
// with the same segments written with LibTorch's operations and differentiated by autograd. The two
// take turns, so that other load on the machine slows both. The ratio is that of the medians.
//
// Shapes: B samples, T tokens per sample, H hidden, V padded vocabulary.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "bench/figure.h"
#include "models/block.h"

namespace rehearse::bench {
namespace {

using at::Tensor;

/// Wall-clock seconds, and CPU seconds of all threads together.
struct Times {
  std::vector<double> wall = {}, processor = {};

  void add(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t processor_begin = std::clock();
    work();
    wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    processor.push_back(double(std::clock() - processor_begin) / CLOCKS_PER_SEC);
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The parameters of one segment as leaves, for which autograd computes gradients, as matrices and
/// vectors: the weight (3, heads, head_dim, H) of query, key and value becomes (3 H, H), their bias
/// (3, heads, head_dim) becomes (3 H), and the output weight (H, heads, head_dim) becomes (H, H).
std::vector<Tensor> leaves_of(const model::ModelSpec& m, Id segment,
                              const std::vector<Tensor>& flat) {
  std::vector<Tensor> leaves;
  for (std::size_t g = 0; g < m.segments[segment].groups.size(); ++g) {
    const Id group = m.segments[segment].groups[g];
    for (std::size_t t = 0; t < m.groups[group].tensors.size(); ++t) {
      Tensor leaf = models::tensor_view(m, group, t, 1, flat[g]).clone();
      if (leaf.dim() == 4) leaf = leaf.reshape({-1, m.hidden});
      if (leaf.dim() == 3) leaf = leaf.size(0) == 3 ? leaf.flatten() : leaf.flatten(1);
      leaves.push_back(leaf.detach().set_requires_grad(true));
    }
  }
  return leaves;
}

/// Forward of one segment. x and the result: (B, T, H). The embedding does not use x; the head
/// returns the loss, a scalar.
Tensor plain_forward(const model::ModelSpec& m, model::SegmentKind kind,
                     const std::vector<Tensor>& w, const Tensor& x, const models::Batch& batch) {
  const auto norm = [&](const Tensor& weight, const Tensor& bias) {
    return at::layer_norm(x, {m.hidden}, weight, bias);
  };
  switch (kind) {
    case model::SegmentKind::embedding:
      return at::embedding(w[0], batch.tokens) + w[1].narrow(0, 0, batch.tokens.size(1));
    case model::SegmentKind::attention: {
      const auto parts = at::linear(norm(w[3], w[4]), w[0], w[1]).split(m.hidden, 2);
      const auto heads = [&](const Tensor& t) {  // (B, T, H) -> (B, heads, T, head_dim)
        return t.view({x.size(0), x.size(1), m.heads, -1}).transpose(1, 2);
      };
      const Tensor a = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                        heads(parts[2]), {}, 0, true);
      return x + at::linear(a.transpose(1, 2).reshape(x.sizes()), w[2], w[5]);
    }
    case model::SegmentKind::mlp:
      return x + at::linear(at::gelu(at::linear(norm(w[3], w[4]), w[0], w[1]), "tanh"), w[2], w[5]);
    case model::SegmentKind::head:  // logits (B T, V), labels (B T)
      return at::cross_entropy_loss(at::linear(norm(w[1], w[2]), w[0]).view({-1, m.padded_vocab}),
                                    batch.labels.view({-1}));
  }
  return {};
}

void compare(const model::ModelSpec& m, Id segment, int samples, int rounds) {
  const model::SegmentKind kind = m.segments[segment].kind;
  std::vector<Tensor> params, grads;
  for (const Id group : m.segments[segment].groups) {
    params.push_back(at::empty({elements_of(m.groups[group], 1)}));
    models::initialise(m, group, 1, 0, 1, params.back());
    grads.push_back(at::empty_like(params.back()));
  }
  models::Batch batch;
  batch.tokens = at::randint(0, m.vocab, {samples, m.seq_len}, at::kLong);
  batch.labels = at::randint(0, m.vocab, {samples, m.seq_len}, at::kLong);
  batch.loss_weight = 1.0 / double(samples * m.seq_len);
  Tensor x = at::randn({samples, m.seq_len, m.hidden});
  const Tensor upstream = at::randn_like(x);
  const auto block = models::make_block(m, segment, 1, 0, program::DType::f32);
  const bool accumulate[3] = {false, false, false};
  const auto ours = [&] {
    models::Saved saved;
    const Tensor out = block->forward(params, x, batch, &saved);
    block->backward(program::Pass::backward, params, x, saved,
                    kind == model::SegmentKind::head ? out.unsqueeze(0) : upstream, batch, grads,
                    {accumulate, grads.size()});
  };
  std::vector<Tensor> leaves = leaves_of(m, segment, params);
  Tensor input = x.detach().clone().set_requires_grad(true);
  const auto plain = [&] {
    for (Tensor& leaf : leaves) leaf.mutable_grad().reset();
    input.mutable_grad().reset();
    const Tensor out = plain_forward(m, kind, leaves, input, batch);
    torch::autograd::backward({out}, {kind == model::SegmentKind::head ? Tensor() : upstream});
  };
  Times a, b;
  ours();
  plain();
  for (int i = 0; i < rounds; ++i) {
    a.add(ours);
    b.add(plain);
  }
  const auto ratio = [](const std::vector<double>& u, const std::vector<double>& v) {
    return median(u) / median(v);
  };
  fmt::print("{:>7} {:<14} {:8.1f} ms {:8.1f} ms {:6.3f} {:10.3f}\n", at::get_num_threads(),
             m.segments[segment].name, 1e3 * median(a.wall), 1e3 * median(b.wall),
             ratio(a.wall, b.wall), ratio(a.processor, b.processor));
  record(
      {.name = fmt::format("block {}, {} threads", m.segments[segment].name, at::get_num_threads()),
       .measured = 1e3 * median(a.wall),
       .unit = "ms",
       .against = "autograd",
       .reference = 1e3 * median(b.wall)});
}

}  // namespace
}  // namespace rehearse::bench

int main(int argc, char** argv) {
  using namespace rehearse;
  using namespace rehearse::bench;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const model::ModelSpec m = model::load_model("gpt2-124m", 256);
  fmt::print("threads segment            blocks    autograd  ratio  processor\n");
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const auto head = static_cast<Id>(m.segments.size() - 1);
    for (const Id segment : {Id{0}, Id{1}, Id{2}, head}) {
      compare(m, segment, 2, segment == head ? (rounds + 2) / 3 : rounds);
    }
  }
}
