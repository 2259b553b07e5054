#include "tests/runtime/apart.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/run_folder.h"

namespace rehearse::runtime {
namespace {

using reference::Weights;

/// The sum of weights[j] x of[j] over all j.
Weights combine(const std::vector<double>& weights, const std::vector<Weights>& of) {
  Weights out;
  for (const auto& [name, first] : of[0]) {
    out[name] = at::zeros_like(first);
    for (std::size_t j = 0; j < of.size(); ++j)
      if (weights[j] != 0) out[name].add_(of[j].at(name), weights[j]);
  }
  return out;
}
Weights mean_of(const std::vector<Weights>& of) {
  return combine(std::vector<double>(of.size(), 1.0 / static_cast<double>(of.size())), of);
}

/// The distances of the program's rotates.
std::vector<int> rotates_of(const job::Job& job) {
  std::set<int> out;
  for (const program::Role& role : program_of(job).roles)
    for (const program::Op& op : role.ops)
      if (const auto* c = std::get_if<program::Collective>(&op.work);
          c != nullptr && c->move == program::Move::rotate)
        out.insert(c->distance);
  return {out.begin(), out.end()};
}

class Workers {
 public:
  Workers(const job::Job& job, const std::vector<std::vector<Id>>& late)
      : job_(job), data_(data_of(job)), late_(late) {
    for (int worker = 0; worker < job.plan.mesh.dp; ++worker) optimizers_.emplace_back(job);
    anchor_ = optimizers_[0].copy();
    for (const auto& [name, tensor] : anchor_) moment_[name] = at::zeros_like(tensor);
    if (job.plan.method == "d-psgd")
      mixing_ =
          mixing_matrix(*job.plan.exchange.averaging.graph, job.plan.mesh.dp, rotates_of(job));
  }

  std::vector<Weights> weights() const {
    std::vector<Weights> out;
    for (const ReferenceOptimizer& one : optimizers_) out.push_back(one.copy());
    return out;
  }

  /// Trains one step and returns the mean loss.
  double step(std::int64_t step) {
    const auto& every = job_.plan.exchange.averaging.local_steps;
    if (averages_samples() && step % *every == 0)
      for (ReferenceOptimizer& one : optimizers_) one.restart(step);
    const std::vector<Weights> before = weights();
    double loss = 0, counted = 0;
    std::vector<Weights> gradients;
    for (std::size_t worker = 0; worker < before.size(); ++worker) {
      const auto [tokens, labels] = samples(step, static_cast<int>(worker));
      const double count = static_cast<double>((labels != no_label).sum().item<std::int64_t>());
      if (!late(worker, step)) {
        loss += reference::loss_sum(job_.model, before[worker], tokens, labels).item<double>();
        counted += count;
      }
      gradients.push_back(
          reference::gradients(job_.model, before[worker], tokens, labels, 1 / count));
    }
    for (std::size_t worker = 0; worker < before.size(); ++worker) {
      if (!mixing_.empty()) optimizers_[worker].set(combine(mixing_[worker], before));
      optimizers_[worker].update(gradients[worker], step);
    }
    if (every && (step + 1) % *every == 0) agree(step);
    return loss / counted;
  }

  /// Each worker takes its part of every batch, at its own weights.
  double validation_loss() const {
    const std::vector<Weights> at_end = weights();
    const int batch = job_.plan.schedule.global_batch, length = job_.model.seq_len;
    const std::int64_t count = job_.train.eval_batches * batch;
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const at::Tensor tokens = at::empty({1, length}, at::kLong);
      const at::Tensor labels = at::empty({1, length}, at::kLong);
      data_.validation(i, 1, tokens.data_ptr<std::int64_t>(), labels.data_ptr<std::int64_t>());
      std::size_t worker = 0;
      for (std::int64_t place = i % batch; place >= samples_of(worker); ++worker)
        place -= samples_of(worker);
      sum += reference::loss_sum(job_.model, at_end[worker], tokens, labels).item<double>();
    }
    return sum / static_cast<double>(data_.validation_labels(0, count));
  }

 private:
  /// Whether workers count by their samples, as the clients of FedAvg do.
  bool averages_samples() const { return job_.plan.method == "fedavg"; }
  /// The samples of a worker in a global batch.
  int samples_of(std::size_t worker) const {
    return job_.plan.samples(static_cast<int>(worker)) * job_.plan.schedule.micro_batches;
  }

  std::pair<at::Tensor, at::Tensor> samples(std::int64_t step, int worker) const {
    const int length = job_.model.seq_len, count = samples_of(static_cast<std::size_t>(worker));
    int first = 0;
    for (int before = 0; before < worker; ++before)
      first += samples_of(static_cast<std::size_t>(before));
    const at::Tensor tokens = at::empty({count, length}, at::kLong);
    const at::Tensor labels = at::empty({count, length}, at::kLong);
    data_.training(step, first, count, tokens.data_ptr<std::int64_t>(),
                   labels.data_ptr<std::int64_t>());
    return {tokens, labels};
  }

  bool late(std::size_t worker, std::int64_t step) const {
    if (late_.empty()) return false;
    const std::vector<Id>& those = late_.at(static_cast<std::size_t>(step));
    return std::ranges::find(those, static_cast<Id>(worker)) != those.end();
  }

  void agree(std::int64_t step) {
    std::vector<double> parts;
    double all = 0;
    for (std::size_t worker = 0; worker < optimizers_.size(); ++worker) {
      const double part = averages_samples() ? samples_of(worker) : 1;
      parts.push_back(late(worker, step) ? 0 : part);
      all += parts.back();
    }
    for (double& part : parts) part /= all;
    Weights agreed = all == 0 ? anchor_ : combine(parts, weights());
    if (job_.plan.method == "diloco") {
      const plan::Averaging& how = job_.plan.exchange.averaging;
      const double lr = *how.outer_lr, momentum = *how.outer_momentum;
      for (auto& [name, mean] : agreed) {
        const at::Tensor gradient = anchor_.at(name) - mean;
        moment_[name] = momentum * moment_[name] + gradient;
        mean = anchor_.at(name) - lr * (gradient + momentum * moment_[name]);
      }
    }
    anchor_ = agreed;
    for (ReferenceOptimizer& one : optimizers_) one.set(agreed);
  }

  const job::Job& job_;
  Data data_;
  const std::vector<std::vector<Id>>& late_;
  std::vector<ReferenceOptimizer> optimizers_ = {};
  Weights anchor_ = {}, moment_ = {};
  std::vector<std::vector<double>> mixing_ = {};
};

}  // namespace

bool trains_apart(const job::Job& job) {
  for (const program::Role& role : program_of(job).roles)
    for (const program::Op& op : role.ops)
      for (const program::Ref& ref : op.refs)
        if (ref.layout.own != 0) return true;
  return false;
}

std::vector<std::vector<double>> mixing_matrix(plan::Graph graph, int workers,
                                               const std::vector<int>& distances) {
  std::vector<std::vector<double>> out;
  for (int i = 0; i < workers; ++i) {
    std::set<int> heard{i};
    const auto hear = [&](int distance) { heard.insert((i + workers - distance) % workers); };
    if (graph == plan::Graph::ring) hear(1), hear(workers - 1);
    for (int d = 1; graph == plan::Graph::exponential && d < workers; d *= 2) hear(d);
    if (graph == plan::Graph::random)
      for (const int d : distances) hear(d);
    auto& row = out.emplace_back(static_cast<std::size_t>(workers), 0.0);
    for (const int j : heard)
      row[static_cast<std::size_t>(j)] = 1 / static_cast<double>(heard.size());
  }
  return out;
}

std::vector<std::vector<Id>> late_of(const std::string& folder) {
  std::vector<std::vector<Id>> out;
  std::ifstream metrics(metrics_path(folder));
  for (std::string line; std::getline(metrics, line);)
    if (const auto row = nlohmann::json::parse(line); row.contains("lr"))
      out.push_back(row.value("late", std::vector<Id>{}));
  return out;
}

ApartRun train_apart(const job::Job& job, const std::vector<std::vector<Id>>& late) {
  at::set_num_threads(1);
  Workers workers(job, late);
  ApartRun run;
  for (std::int64_t step = 0; step < job.train.steps; ++step) {
    run.mean.losses.push_back(workers.step(step));
    run.distances.push_back(consensus_distance(workers.weights()));
  }
  run.weights = workers.weights();
  run.mean.weights = mean_of(run.weights);
  run.mean.validation_loss = workers.validation_loss();
  return run;
}

std::vector<Weights> own_weights_of(const std::string& checkpoint, const job::Job& job) {
  CheckpointReader reader(checkpoint);
  std::vector<Weights> out(static_cast<std::size_t>(job.plan.mesh.dp));
  for (const model::ParamGroup& group : job.model.groups)
    for (const model::TensorSpec& spec : group.tensors)
      for (int worker = 0; worker < job.plan.mesh.dp; ++worker) {
        std::vector<std::byte> bytes = reader.whole(tensors::StorageKind::param, spec.name, 1,
                                                    worker, &spec, program::DType::f32);
        EXPECT_FALSE(bytes.empty()) << spec.name << " of worker " << worker;
        if (!bytes.empty())
          out[static_cast<std::size_t>(worker)][spec.name] =
              at::from_blob(bytes.data(), spec.shape, at::kFloat).clone();
      }
  return out;
}

double consensus_distance(const std::vector<Weights>& weights) {
  const Weights mean = mean_of(weights);
  double sum = 0;
  for (const Weights& one : weights)
    for (const auto& [name, tensor] : one)
      sum += (tensor - mean.at(name)).to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum / static_cast<double>(weights.size()));
}

}  // namespace rehearse::runtime
