// Single-process training that equals a run of data-parallel ranks bit by bit: gradients by the
// same blocks, worker by worker, and updates by the same kernel. A test says how the gradients are
// summed.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/tensors/tensor_map.h"
#include "models/block.h"
#include "runtime/kernels/optimizer.h"
#include "tests/runtime/sparse_job.h"

namespace rehearse::runtime {

using Groups = std::vector<at::Tensor>;  // a flat tensor for each parameter group

inline Groups zeros_of(const model::ModelSpec& model) {
  Groups out;
  for (const model::ParamGroup& group : model.groups)
    out.push_back(at::zeros({elements_of(group, 1)}));
  return out;
}

/// The gradient of one worker: forward and backward of all blocks, micro-batch by micro-batch.
inline Groups gradient(const job::Job& job, const Data& data, const Groups& weights,
                       std::int64_t step, int worker) {
  const model::ModelSpec& model = job.model;
  const int samples = job.plan.samples();
  Groups grads = zeros_of(model);
  std::vector<bool> touched(grads.size());
  for (int mb = 0; mb < job.plan.schedule.micro_batches; ++mb) {
    models::Batch batch{
        .tokens = at::empty({samples, model.seq_len}, at::kLong),
        .labels = at::empty({samples, model.seq_len}, at::kLong),
        .first_sample = (std::int64_t{worker} * job.plan.schedule.micro_batches + mb) * samples,
        .step = step,
        .seed = job.train.seed,
        .loss_weight = 1.0 / static_cast<double>(data.training_labels(step))};
    data.training(step, batch.first_sample, samples, batch.tokens.data_ptr<std::int64_t>(),
                  batch.labels.data_ptr<std::int64_t>());
    const auto of = [&](Id s, const Groups& all) {
      Groups some;
      for (const Id g : model.segments[s].groups) some.push_back(all[g]);
      return some;
    };
    std::vector<at::Tensor> inputs(model.segments.size() + 1);
    std::vector<models::Saved> saved(model.segments.size());
    for (Id s = 0; s < model.segments.size(); ++s)
      inputs[s + 1] = models::make_block(model, s, 1, 0, program::DType::f32)
                          ->forward(of(s, weights), inputs[s], batch, &saved[s]);
    // The head's statistics, (tp = 1, samples, sequence length, 3).
    at::Tensor back = inputs.back().view({1, samples, model.seq_len, 3});
    for (Id s = static_cast<Id>(model.segments.size()); s-- > 0;) {
      const auto& groups = model.segments[s].groups;
      const auto add = std::make_unique<bool[]>(groups.size());
      for (std::size_t i = 0; i < groups.size(); ++i) {
        add[i] = touched[groups[i]];
        touched[groups[i]] = true;
      }
      const Groups into = of(s, grads);
      back = models::make_block(model, s, 1, 0, program::DType::f32)
                 ->backward(program::Pass::backward, of(s, weights), inputs[s], saved[s], back,
                            batch, into, std::span<const bool>(add.get(), groups.size()));
    }
  }
  return grads;
}

/// The elements of a bucket, `of` of them, in which groups lie as `pieces` say.
inline std::vector<float> flat(const std::vector<tensors::ParamPiece>& pieces, const Groups& groups,
                               std::int64_t of) {
  std::vector<float> out(static_cast<std::size_t>(of));
  for (const tensors::ParamPiece& p : pieces)
    std::copy_n(groups[p.group].data_ptr<float>() + p.offset, p.end - p.begin,
                out.data() + p.begin);
  return out;
}
/// The reverse of flat.
inline void put(const std::vector<tensors::ParamPiece>& pieces, const std::vector<float>& elements,
                Groups& groups) {
  for (const tensors::ParamPiece& p : pieces)
    std::copy_n(elements.data() + p.begin, p.end - p.begin,
                groups[p.group].data_ptr<float>() + p.offset);
}

/// The weights after `steps` steps. `sum_of`: the gradient that is applied, from those of the
/// workers; from step `freeze` on (0: never) the new first moment.
inline Groups train_exactly(
    const job::Job& job, int steps,
    const std::function<Groups(std::int64_t step, const std::vector<Groups>& by_worker)>& sum_of,
    std::int64_t freeze = 0) {
  const model::ModelSpec& model = job.model;
  const Data data({.path = job.train.data,
                   .seq_len = model.seq_len,
                   .global_batch = job.plan.schedule.global_batch,
                   .vocab = model.vocab,
                   .seed = job.train.seed});
  Groups weights = zeros_of(model), first = zeros_of(model), second = zeros_of(model);
  for (Id g = 0; g < weights.size(); ++g)
    models::initialise(model, g, 1, 0, job.train.seed, weights[g]);
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<Groups> by_worker;
    for (int worker = 0; worker < job.plan.mesh.dp; ++worker)
      by_worker.push_back(gradient(job, data, weights, step, worker));
    const Groups sum = sum_of(step, by_worker);
    OptimizerStep settings = optimizer_step(job.train, job.plan.optimizer, step);
    if (freeze > 0 && step >= freeze) settings.frozen = freeze;
    for (Id g = 0; g < weights.size(); ++g)
      for (const tensors::TensorInterval& tensor : tensors::tensors_of(model.groups[g], 1)) {
        const auto at = [&](const at::Tensor& t) { return t.data_ptr<float>() + tensor.begin; };
        update(settings,
               {.param = at(weights[g]),
                .grad = at(sum[g]),
                .moment1 = at(first[g]),
                .moment2 = at(second[g]),
                .elements = tensor.end - tensor.begin},
               tensor.spec->decay, scalars_of(settings, settings.step));
      }
  }
  return weights;
}

/// A rank's copy of the weights.
inline Groups weights_in(const job::Job& job, const States& states, Id rank) {
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const tensors::RankMap map = tensors::map_tensors(linked, job.model)[rank];
  const program::Role& role = linked.program.roles[linked.role_of[rank]];
  Groups out = zeros_of(job.model);
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (map.storages[s].kind != tensors::StorageKind::param ||
        !states.contains(role.storages[s].name))
      continue;
    for (const tensors::ParamPiece& p : map.storages[s].pieces)
      std::memcpy(out[p.group].data_ptr<float>() + p.offset,
                  states.at(role.storages[s].name).data() + 4 * p.begin,
                  static_cast<std::size_t>(4 * (p.end - p.begin)));
  }
  return out;
}

}  // namespace rehearse::runtime
