#include "tests/runtime/training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/methods/strategy.h"
#include "models/block.h"
#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/training/evaluation.h"

namespace rehearse::runtime {

void write_data(const ScratchFolder& folder) {
  write_shard(folder.file("tiny_train_000.bin"), learnable_tokens(20'000, 512));
  write_shard(folder.file("tiny_train_001.bin"), learnable_tokens(7'000, 500));
  write_shard(folder.file("tiny_val_000.bin"), learnable_tokens(5'000, 512));
  write_text(folder.file("manifest.json"),
             R"({"vocab_size": 512, "special_token_ids": {"mask": 511}})");
}

job::Job small_job(plan::Plan plan, const std::string& data, const std::string& out,
                   const std::string& model) {
  job::Job job;
  job.model = model::load_model(model, 16);
  plan::Plan implied = plan;
  if (const methods::Strategy& strategy = methods::strategy_named(plan.method);
      strategy.defaults != nullptr)
    strategy.defaults(implied);
  if (plan.mesh.pp * implied.schedule.virtual_stages > 2) {
    job.model.layers = 4;  // at least one for each model chunk
    job.model.groups.clear();
    job.model.segments.clear();
    job.model = build_model(job.model);
  }
  if (plan.schedule.global_batch == 0) plan.schedule.global_batch = 8;
  if (plan.exchange.bucket_bytes() > 1e5) plan.exchange.bucket = Bytes(60e3);  // several buckets
  if (implied.exchange.averaging.local_steps.value_or(0) > 4)                  // several exchanges
    plan.exchange.averaging.local_steps = 4;
  job.plan = methods::prepare(plan, job.model);
  job.cluster = cluster::load_cluster("this-machine:" + std::to_string(job.plan.mesh.world_size()));
  job.train.seq_len = 16;
  job.train.steps = 20;
  job.train.seed = 3;
  job.train.lr = plan.optimizer == plan::Optimizer::sgd ? 0.1 : 3e-3;
  // A client's new AdamW steps by the learning rate, however small the gradient is: a rounding
  // error may change a weight by a whole step. A larger eps makes small gradients count less.
  const methods::Combines& can = methods::strategy_named(plan.method).combines;
  if (can.local_steps && can.servers) job.train.eps = 1e-3;
  job.train.weight_decay = 0.1;
  job.train.warmup_steps = 3;
  job.train.eval_batches = 2;
  job.train.data = data;
  job.train.out = out;
  job.run.threads = 1;
  job.run.device = test_device();
  job.run.timeout = Seconds(300);
  return job;
}

TrainedRun train_in_processes(const job::Job& job, const TrainOptions& options) {
  at::set_num_threads(1);  // starts no thread pool, which would not survive a fork
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        TrainOptions quietly = options;
        quietly.quiet = true;
        const TrainSummary summary = train(job, environment, quietly);
        nlohmann::json j = {{"losses", summary.losses}, {"checkpoint", summary.checkpoint}};
        if (!std::isnan(summary.validation_loss)) j["validation"] = summary.validation_loss;
        return j.dump();
      });
  TrainedRun run;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank].status, 0) << "rank " << rank << ": " << outcomes[rank].text;
  if (outcomes[0].status == 0) {
    const auto j = nlohmann::json::parse(outcomes[0].text);
    for (const nlohmann::json& loss : j.at("losses"))  // null: not a number
      run.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                          : loss.get<double>());
    run.checkpoint = j.at("checkpoint");
    run.validation_loss = j.value("validation", std::nan(""));
  }
  return run;
}

std::vector<Outcome> fail_in_processes(const job::Job& job, const TrainOptions& options,
                                       const std::function<void(int rank)>& before) {
  at::set_num_threads(1);
  return run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
    if (before) before(environment.rank);
    TrainOptions quietly = options;
    quietly.quiet = true;
    train(job, environment, quietly);
    return std::string("no error");
  });
}

reference::Weights weights_of(const std::string& checkpoint, const model::ModelSpec& model,
                              tensors::StorageKind kind) {
  CheckpointReader reader(checkpoint);
  reference::Weights weights;
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors) {
      const program::DType dtype = reader.dtype_of(kind, spec.name);
      const std::vector<std::byte> bytes = reader.mean(kind, spec.name, 1, &spec, dtype);
      if (bytes.empty()) {
        ADD_FAILURE() << spec.name << " is not in " << checkpoint;
        continue;
      }
      weights[spec.name] =
          at::from_blob(const_cast<std::byte*>(bytes.data()), spec.shape, scalar_type(dtype))
              .to(at::kFloat, false, true);
    }
  return weights;
}

Data data_of(const job::Job& job) {
  return Data(
      {.path = job.train.data,
       .objective = job.model.family == model::Family::bert ? Objective::masked : Objective::causal,
       .seq_len = job.model.seq_len,
       .global_batch = job.plan.schedule.global_batch,
       .vocab = job.model.vocab,
       .seed = job.train.seed,
       .clients = clients_of(job)});
}

ReferenceOptimizer::ReferenceOptimizer(const job::Job& job) : job_(job) {
  const model::ModelSpec& model = job.model;
  for (Id g = 0; g < model.groups.size(); ++g) {
    const at::Tensor flat = at::empty({elements_of(model.groups[g], 1)});
    models::initialise(model, g, 1, 0, job.train.seed, flat);
    for (std::size_t t = 0; t < model.groups[g].tensors.size(); ++t) {
      const model::TensorSpec& spec = model.groups[g].tensors[t];
      weights_[spec.name] = models::tensor_view(model, g, t, 1, flat).clone();
      first_[spec.name] = at::zeros_like(weights_[spec.name]);
      second_[spec.name] = at::zeros_like(weights_[spec.name]);
      decays_[spec.name] = spec.decay;
    }
  }
}

reference::Weights ReferenceOptimizer::copy() const {
  reference::Weights copy;
  for (const auto& [name, tensor] : weights_) copy[name] = tensor.clone();
  return copy;
}

void ReferenceOptimizer::set(const reference::Weights& weights) {
  for (const auto& [name, tensor] : weights) weights_.at(name) = tensor.clone();
}

void ReferenceOptimizer::update(const reference::Weights& gradients, std::int64_t step) {
  const job::Train& settings = job_.train;
  const double lr = learning_rate(settings, step);
  double factor = 1;
  if (settings.clip > 0) factor = std::min(1.0, settings.clip / (global_norm(gradients) + 1e-6));
  for (auto& [name, weight] : weights_) {
    const at::Tensor gradient = gradients.at(name) * factor;
    const double decay = decays_.at(name) ? settings.weight_decay : 0;
    at::Tensor &first = first_[name], &second = second_[name];
    if (job_.plan.optimizer == plan::Optimizer::sgd) {
      first.mul_(settings.momentum).add_(gradient + decay * weight);
      weight.sub_(first * lr);
      continue;
    }
    weight.mul_(1 - lr * decay);
    first.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
    second.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
    const double t = static_cast<double>(step - began_ + 1);
    const at::Tensor denominator =
        (second / (1 - std::pow(settings.beta2, t))).sqrt() + settings.eps;
    weight.addcdiv_(first, denominator, -lr / (1 - std::pow(settings.beta1, t)));
  }
}

void ReferenceOptimizer::restart(std::int64_t step) {
  for (auto* moments : {&first_, &second_})
    for (auto& [name, tensor] : *moments) tensor.zero_();
  began_ = step;
}

ReferenceRun train_reference(const job::Job& job, const ReferenceRules& rules) {
  at::set_num_threads(1);
  const model::ModelSpec& model = job.model;
  const job::Train& settings = job.train;
  const Data data = data_of(job);
  ReferenceOptimizer optimizer(job);
  const int batch = job.plan.schedule.global_batch, length = model.seq_len;
  const auto samples_of = [&](int worker) {
    return rules.workers == job.plan.mesh.dp
               ? job.plan.samples(worker) * job.plan.schedule.micro_batches
               : batch / rules.workers;
  };
  std::deque<reference::Weights> history;  // newest first
  const std::size_t oldest = static_cast<std::size_t>(
      rules.staleness.empty() ? 0 : *std::ranges::max_element(rules.staleness));
  const auto keep = [&] {
    history.push_front(optimizer.copy());
    if (history.size() > oldest + 1) history.pop_back();
  };
  keep();
  // The weights that a step reads: of each stage, as old as it keeps them.
  const auto read = [&] {
    reference::Weights used = history.front();
    const auto& chunks = job.plan.placement.stages;
    for (std::size_t chunk = 0; chunk < chunks.size() && !rules.staleness.empty(); ++chunk) {
      const int age = rules.staleness[chunk % static_cast<std::size_t>(job.plan.mesh.pp)];
      const auto& from = history[std::min(history.size() - 1, static_cast<std::size_t>(age))];
      for (const Id segment : chunks[chunk])
        for (const Id group : model.segments[segment].groups)
          for (const model::TensorSpec& spec : model.groups[group].tensors)
            used.at(spec.name) = from.at(spec.name);
    }
    return used;
  };
  ReferenceRun run;
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    const reference::Weights used = read();
    const at::Tensor tokens = at::empty({batch, length}, at::kLong);
    const at::Tensor labels = at::empty({batch, length}, at::kLong);
    data.training(step, 0, batch, tokens.data_ptr<std::int64_t>(), labels.data_ptr<std::int64_t>());
    const double scale = 1.0 / static_cast<double>(data.training_labels(step));
    double loss = 0;
    std::vector<reference::Weights> by_worker;
    for (int worker = 0, first = 0; worker < rules.workers; ++worker) {
      const int count = samples_of(worker) - (worker == 0 ? rules.dropped_samples : 0);
      double part = 0;
      by_worker.push_back(reference::gradients(model, used, tokens.narrow(0, first, count),
                                               labels.narrow(0, first, count), scale, {}, &part));
      loss += part;
      first += samples_of(worker);
    }
    run.losses.push_back(loss);
    reference::Weights gradients;
    if (rules.combine)
      gradients = rules.combine(static_cast<int>(step), by_worker);
    else
      for (const reference::Weights& one : by_worker)
        for (const auto& [name, gradient] : one)
          gradients[name] = gradients.count(name) ? gradients[name] + gradient : gradient.clone();

    optimizer.update(gradients, step);
    keep();
  }
  double sum = 0;
  const std::int64_t samples = settings.eval_batches * batch;
  for (std::int64_t i = 0; i < samples; ++i) {
    const at::Tensor tokens = at::empty({1, length}, at::kLong);
    const at::Tensor labels = at::empty({1, length}, at::kLong);
    data.validation(i, 1, tokens.data_ptr<std::int64_t>(), labels.data_ptr<std::int64_t>());
    sum += reference::loss_sum(model, read(), tokens, labels).item<double>();
  }
  run.validation_loss = sum / static_cast<double>(data.validation_labels(0, samples));
  run.weights = optimizer.copy();
  return run;
}

ReferenceRun reference_of(const job::Job& job, const ReferenceRules& rules) {
  const bool one_age =
      rules.staleness.empty() ||
      std::ranges::count(rules.staleness, rules.staleness.front()) == std::ssize(rules.staleness);
  if (rules.combine || !one_age) return train_reference(job, rules);
  static std::map<std::string, ReferenceRun> known;
  const job::Train& train = job.train;
  const std::string key = fmt::format(
      "{} {} {} {} {} {} {} {} {} {}", job.model.name, job.model.layers, train.steps, train.lr,
      train.eps, train.clip, static_cast<int>(job.plan.optimizer), job.plan.schedule.global_batch,
      rules.staleness.empty() ? 0 : rules.staleness.front(), rules.dropped_samples);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, train_reference(job, rules)).first;
  return found->second;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = b.norm().item<double>();
  const double difference = (a - b).norm().item<double>();
  return scale > 0 ? difference / scale : difference;
}

std::pair<double, std::string> worst_difference(const reference::Weights& a,
                                                const reference::Weights& b) {
  std::pair<double, std::string> worst = {0, "no tensor"};
  for (const auto& [name, tensor] : b) {
    const double d = a.count(name) ? relative_difference(a.at(name), tensor)
                                   : std::numeric_limits<double>::infinity();
    if (d >= worst.first) worst = {d, name};
  }
  return worst;
}

double global_norm(const reference::Weights& weights) {
  double sum = 0;
  for (const auto& [name, tensor] : weights)
    sum += tensor.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

}  // namespace rehearse::runtime
