#include "tests/models/ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace rehearse::models {

at::ScalarType scalar_type(program::DType dtype) {
  return dtype == program::DType::bf16  ? at::kBFloat16
         : dtype == program::DType::f16 ? at::kHalf
                                        : at::kFloat;
}

Ranks::Ranks(const model::ModelSpec& model, int tp, program::DType dtype, std::uint64_t seed,
             Break broken)
    : model_(model), tp_(tp), broken_(broken), written_(model.groups.size()) {
  at::set_num_threads(1);  // tensors are so small that more threads would be slower
  for (int rank = 0; rank < tp; ++rank) {
    params_.emplace_back();
    grads_.emplace_back();
    blocks_.emplace_back();
    for (Id g = 0; g < model.groups.size(); ++g) {
      const auto options = at::TensorOptions().dtype(scalar_type(dtype));
      params_.back().push_back(at::empty({elements_of(model.groups[g], tp)}, options));
      initialise(model, g, tp, rank, seed, params_.back().back());
      // Start from wrong values: a gradient that is read before it is written shows.
      grads_.back().push_back(at::full_like(params_.back().back(), 1e4));
    }
    const int place = broken == Break::residual_everywhere ? 0 : rank;
    for (Id s = 0; s < model.segments.size(); ++s) {
      const bool layer = model.segments[s].layer >= 0;
      blocks_.back().push_back(make_block(model, s, tp, layer ? place : rank, dtype));
    }
  }
  saved_bytes_.assign(tp, std::vector<std::int64_t>(model.segments.size()));
}

std::vector<at::Tensor> Ranks::of(const Flat& flat, int rank, Id segment) const {
  std::vector<at::Tensor> result;
  for (const Id group : model_.segments[segment].groups) result.push_back(flat[rank][group]);
  return result;
}

double Ranks::step(const Batch& batch) {
  const auto segments = static_cast<Id>(model_.segments.size());
  std::vector<std::vector<Saved>> saved(tp_);
  outputs_.clear();
  at::Tensor x, stats;
  for (Id s = 0; s < segments; ++s) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < tp_; ++rank) {
      saved[rank].emplace_back();
      parts.push_back(
          blocks_[rank][s]->forward(of(params_, rank, s), x, batch, &saved[rank].back()));
      saved_bytes_[rank][s] = saved[rank].back().bytes();
    }
    if (s + 1 == segments) {
      stats = at::stack(parts);
    } else {
      x = at::stack(parts).to(at::kFloat).sum(0).to(parts[0].scalar_type());
      outputs_.push_back(x);
    }
  }
  at::Tensor grad;
  std::vector<std::function<void()>> later;  // second halves
  for (Id s = segments; s-- > 0;) {
    if (s == 0)
      for (const auto& half : later) half();
    std::vector<at::Tensor> parts;
    const auto& groups = model_.segments[s].groups;
    for (int rank = 0; rank < tp_; ++rank) {
      const std::shared_ptr<bool[]> accumulate(new bool[groups.size()]);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        accumulate[i] = written_[groups[i]] && broken_ != Break::head_overwrites;
      }
      at::Tensor upstream = s + 1 == segments ? stats : grad;
      if (s + 1 == segments && broken_ == Break::no_stats_gather) {
        upstream = stats.narrow(0, rank, 1).expand_as(stats).contiguous();
      }
      if (s + 1 != segments && broken_ == Break::no_input_sum) upstream = grad[rank];
      const auto run = [this, &batch, &saved, accumulate, &groups, rank, s](
                           program::Pass pass, const at::Tensor& input, const at::Tensor& above) {
        std::vector<at::Tensor> grads(groups.size());
        for (const Id group : gradients_of(model_, s, pass))
          grads[static_cast<std::size_t>(std::ranges::find(groups, group) - groups.begin())] =
              grads_[rank][group];
        return blocks_[rank][s]->backward(pass, of(params_, rank, s), input, saved[rank][s], above,
                                          batch, grads, {accumulate.get(), groups.size()});
      };
      const at::Tensor input = s == 0 ? at::Tensor() : outputs_[s - 1];
      if (!halves_ || s == 0) {
        parts.push_back(run(program::Pass::backward, input, upstream));
        continue;
      }
      parts.push_back(run(program::Pass::backward_input, input, upstream));
      EXPECT_EQ(saved[rank][s].bytes(), saved_bytes_[rank][s]);
      later.emplace_back([run, above = s + 1 == segments ? at::Tensor() : upstream] {
        run(program::Pass::backward_weight, {}, above);
      });
    }
    for (const Id group : groups) written_[group] = true;
    if (s == 0) break;
    grad = at::stack(parts);
    if (broken_ != Break::no_input_sum) {
      grad = grad.to(at::kFloat).sum(0).to(parts[0].scalar_type());
    }
  }
  return loss_sum(stats, batch).item<double>();
}

double Ranks::evaluate(const Batch& batch) {
  at::Tensor x;
  for (Id s = 0; s < model_.segments.size(); ++s) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < tp_; ++rank) {
      parts.push_back(blocks_[rank][s]->forward(of(params_, rank, s), x, batch, nullptr));
    }
    x = s + 1 == model_.segments.size() ? at::stack(parts) : at::stack(parts).sum(0);
  }
  return loss_sum(x, batch).item<double>();
}

reference::Weights Ranks::gathered(const Flat& flat) const {
  reference::Weights result;
  for (Id g = 0; g < model_.groups.size(); ++g) {
    const auto& tensors = model_.groups[g].tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::vector<at::Tensor> shards;
      for (int rank = 0; rank < tp_; ++rank) {
        shards.push_back(tensor_view(model_, g, t, tp_, flat[rank][g]).to(at::kFloat));
      }
      result[tensors[t].name] =
          tensors[t].split >= 0 ? at::cat(shards, tensors[t].split) : shards[0];
    }
  }
  return result;
}

reference::Weights Ranks::gradients() const {
  Flat flat = grads_;
  for (Id g = 0; g < model_.groups.size(); ++g) {
    if (model_.groups[g].split) continue;
    flat[0][g] = grads_[0][g].to(at::kFloat);
    for (int rank = 1; rank < tp_; ++rank) flat[0][g] = flat[0][g] + grads_[rank][g];
  }
  return gathered(flat);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const double norm = b.norm().item<double>();
  const double delta = (a - b).norm().item<double>();
  return norm == 0 ? delta : delta / norm;
}

Worst worst(const reference::Weights& a, const reference::Weights& b) {
  Worst result;
  for (const auto& [name, tensor] : b) {
    double d = difference(a.at(name), tensor);
    const std::size_t key = name.rfind(".key.bias");
    if (key != std::string::npos) {
      // A key bias adds the same to all scores of a query, so its true gradient is 0.
      const at::Tensor& query = b.at(name.substr(0, key) + ".query.bias");
      d = (a.at(name) - tensor).norm().item<double>() / query.norm().item<double>();
    }
    if (!(d <= result.difference)) result = {name, d};
  }
  return result;
}

model::ModelSpec small(model::Family family, bool tied, double dropout) {
  model::ModelSpec m;
  m.name = "small";
  m.family = family;
  m.layers = 2;
  m.hidden = 48;
  m.heads = 4;
  if (family == model::Family::llama) m.heads = 8, m.kv_heads = 4;
  m.ffn = 160;
  m.vocab = 201;
  m.padded_vocab = 216;
  m.seq_len = 20;
  m.max_positions = 24;
  m.tied = tied;
  m.dropout = dropout;
  return build_model(m);
}

model::ModelSpec gemma_of(model::ModelSpec m, bool output_norm) {
  m.activation = model::Activation::geglu;
  m.norm_offset = m.scaled_embedding = true;
  m.output_norm = output_norm;
  m.query_scalar = 0.5;
  m.attention_cap = m.qk_norm ? 4 : 0.05;  // as large as scores are
  m.logit_cap = 0.3;
  m.window = 7;
  m.global_every = 2;
  return build_model(m);
}

Batch random_batch(const model::ModelSpec& model, int samples, double counted, std::uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch batch;
  batch.tokens = at::randint(0, model.vocab, {samples, model.seq_len}, random, options);
  batch.labels = at::randint(0, model.vocab, {samples, model.seq_len}, random, options);
  const at::Tensor keep = at::rand({samples, model.seq_len}, random, at::kFloat).lt(counted);
  batch.labels = at::where(keep, batch.labels, at::full_like(batch.labels, -100));
  batch.seed = seed;
  batch.loss_weight = 1.0 / std::max<std::int64_t>(1, keep.sum().item<std::int64_t>());
  return batch;
}

}  // namespace rehearse::models
