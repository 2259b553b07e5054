// Compares sparse exchanges in four real processes with one process that follows eq. 4 and 5 of Sun
// 2026: gradients by the same blocks, selection by sorting, sums in the order of ranks. Weights
// must be equal bit by bit, for every form of error feedback and every reduction.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/names.h"
#include "engine/tensors/tensor_map.h"
#include "models/block.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/kernels/sparsify.h"
#include "tests/runtime/sparse_job.h"

namespace rehearse::runtime {
namespace {

using Groups = std::vector<at::Tensor>;  // a flat tensor for each parameter group

Groups zeros_of(const model::ModelSpec& model) {
  Groups out;
  for (const model::ParamGroup& group : model.groups)
    out.push_back(at::zeros({elements_of(group, 1)}));
  return out;
}

/// The gradient of one worker: forward and backward of all blocks, micro-batch by micro-batch.
Groups gradient(const job::Job& job, const Data& data, const Groups& weights, std::int64_t step,
                int worker) {
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
        .loss_scale = 1.0 / static_cast<double>(data.training_labels(step))};
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

/// A bucket of the program: its select kernel, and where the parameter groups lie in it.
struct Chosen {
  program::Kernel kernel = {};
  std::vector<tensors::ParamPiece> pieces = {};
};
std::vector<Chosen> chosen_in(const job::Job& job) {
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const tensors::RankMap map = tensors::map_tensors(linked, job.model)[0];  // rank 0 leads its node
  const program::Role& role = linked.program.roles[linked.role_of[0]];
  std::vector<Chosen> out;
  for (const program::Op& op : role.ops)
    if (const auto* kernel = std::get_if<program::Kernel>(&op.work);
        kernel != nullptr && kernel->kind == program::KernelKind::select)
      out.push_back(
          {*kernel,
           map.storages[role.views[find(op, program::Slot::residual)->view].storage].pieces});
  return out;
}

std::vector<float> flat(const Chosen& bucket, const Groups& groups) {
  std::vector<float> out(static_cast<std::size_t>(bucket.kernel.of));
  for (const tensors::ParamPiece& p : bucket.pieces)
    std::copy_n(groups[p.group].data_ptr<float>() + p.offset, p.end - p.begin,
                out.data() + p.begin);
  return out;
}

/// What a sender sends of v = g + e, chosen by sorting; 0 elsewhere. `e` becomes the new residual.
std::vector<float> sent_by_sorting(const program::Kernel& kernel, const std::vector<float>& g,
                                   std::vector<float>& e) {
  std::vector<float> v = g, sent(g.size());
  for (std::size_t i = 0; i < g.size(); ++i)
    if (kernel.feedback != program::Feedback::literal) v[i] = g[i] + e[i];
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::fabs(v[a]) > std::fabs(v[b]); });
  for (std::int64_t i = 0; i < kernel.keep; ++i)
    sent[order[static_cast<std::size_t>(i)]] = v[order[static_cast<std::size_t>(i)]];
  const float beta = kernel.feedback == program::Feedback::conserving ? 1.0F : 0.9F;
  for (std::size_t i = 0; i < g.size(); ++i) e[i] = (g[i] + beta * e[i]) - sent[i];
  return sent;
}
/// The same with the kernel under test, for selectors whose choice has no simple definition. Then
/// the test covers only what ranks do with the chosen entries.
std::vector<float> sent_by_selector(const job::Job& job, const Chosen& bucket, std::int64_t step,
                                    const std::vector<float>& g, std::vector<float>& e,
                                    float* threshold) {
  SelectScratch scratch;
  std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(bucket.kernel)));
  select(bucket.kernel, {.step = step, .seed = job.train.seed, .key = bucket.pieces.front().group},
         g.data(), program::DType::f32, e.data(), threshold, packet.data(), scratch);
  std::vector<float> sent(g.size());
  scatter_add(bucket.kernel, packet.data(), 1, 1, 0, bucket.kernel.of, sent.data());
  return sent;
}

struct Sender {
  std::vector<float> residual = {};
  float threshold[2] = {};
};

/// The weights after `steps` steps in a single process.
Groups emulate(const job::Job& job, int steps, plan::Reduction reduction) {
  const model::ModelSpec& model = job.model;
  const Data data({.path = job.train.data,
                   .seq_len = model.seq_len,
                   .global_batch = job.plan.schedule.global_batch,
                   .vocab = model.vocab,
                   .seed = job.train.seed});
  const std::vector<Chosen> buckets = chosen_in(job);
  Groups weights = zeros_of(model), first = zeros_of(model), second = zeros_of(model);
  for (Id g = 0; g < weights.size(); ++g)
    models::initialise(model, g, 1, 0, job.train.seed, weights[g]);
  std::map<std::pair<std::size_t, Id>, Sender> senders;  // (bucket, node or rank)
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<Groups> by_worker;
    for (int worker = 0; worker < job.plan.mesh.dp; ++worker)
      by_worker.push_back(gradient(job, data, weights, step, worker));
    Groups sum = zeros_of(model);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::map<Id, std::vector<float>> parts;  // by sender: its gradient
      for (Id worker = 0; worker < by_worker.size(); ++worker) {
        const std::vector<float> mine = flat(buckets[b], by_worker[worker]);
        const Id who =
            reduction == plan::Reduction::two_level ? job.plan.placement.node_of[worker] : worker;
        auto [it, fresh] = parts.try_emplace(who, mine);
        if (!fresh)
          for (std::size_t i = 0; i < mine.size(); ++i) it->second[i] += mine[i];
      }
      std::vector<float> all(static_cast<std::size_t>(buckets[b].kernel.of));
      for (const auto& [who, part] : parts) {
        Sender& sender = senders[{b, who}];
        sender.residual.resize(part.size());
        const std::vector<float> sent =
            buckets[b].kernel.selector == program::Selector::top_k
                ? sent_by_sorting(buckets[b].kernel, part, sender.residual)
                : sent_by_selector(job, buckets[b], step, part, sender.residual, sender.threshold);
        for (std::size_t i = 0; i < all.size(); ++i) all[i] += sent[i];
      }
      for (const tensors::ParamPiece& p : buckets[b].pieces)
        std::copy_n(all.data() + p.begin, p.end - p.begin,
                    sum[p.group].data_ptr<float>() + p.offset);
    }
    for (Id g = 0; g < weights.size(); ++g)
      for (const tensors::TensorInterval& tensor : tensors::tensors_of(model.groups[g], 1)) {
        const auto at = [&](at::Tensor& t) { return t.data_ptr<float>() + tensor.begin; };
        update(optimizer_step(job.train, job.plan.optimizer, step),
               {.param = at(weights[g]),
                .grad = at(sum[g]),
                .moment1 = at(first[g]),
                .moment2 = at(second[g]),
                .elements = tensor.end - tensor.begin},
               tensor.spec->decay);
      }
  }
  return weights;
}

/// A rank's copy of the weights.
Groups weights_in(const job::Job& job, const States& states, Id rank) {
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

struct Case {
  std::string name = {};
  plan::Plan plan = {};
  plan::Reduction reduction = plan::Reduction::sparse;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class SparseRuns : public testing::TestWithParam<Case> {};

TEST_P(SparseRuns, EqualOneProcessToTheBit) {
  ScratchFolder data;
  write_training_data(data);
  constexpr int steps = 4;
  const job::Job job = sparse_job(GetParam().plan, GetParam().reduction, 0.1, data.path());
  const std::vector<States> ranks = run_sparse(job, steps);
  if (HasFailure()) return;
  const Groups expected = emulate(job, steps, GetParam().reduction);
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const Groups weights = weights_in(job, ranks[rank], rank);
    for (Id g = 0; g < weights.size(); ++g)
      ASSERT_TRUE(at::equal(weights[g], expected[g]))
          << "rank " << rank << ' ' << job.model.groups[g].name << ": "
          << (weights[g] != expected[g]).sum().item<std::int64_t>() << " of " << expected[g].numel()
          << " differ";
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const plan::Reduction reduction : {plan::Reduction::sparse, plan::Reduction::two_level})
    for (const program::Feedback form :
         {program::Feedback::conserving, program::Feedback::printed, program::Feedback::literal})
      out.push_back(
          {fmt::format("{}_{}", name_of(reduction), name_of(form)),
           {.mesh = {.dp = 4}, .exchange = {.feedback = form}, .optimizer = plan::Optimizer::sgd},
           reduction});
  for (const plan::Reduction reduction : {plan::Reduction::sparse, plan::Reduction::two_level}) {
    const std::string how(name_of(reduction));
    out.push_back({how + "_adamw", {.mesh = {.dp = 4}}, reduction});
    out.push_back({how + "_random",
                   {.mesh = {.dp = 4}, .exchange = {.selector = program::Selector::random_k}},
                   reduction});
    out.push_back({how + "_threshold",
                   {.mesh = {.dp = 4}, .exchange = {.selector = program::Selector::threshold}},
                   reduction});
    out.push_back({how + "_zero1_accumulating",
                   {.mesh = {.dp = 4}, .schedule = {.micro_batches = 2}, .exchange = {.zero = 1}},
                   reduction});
    out.push_back({how + "_zero2_accumulating",
                   {.mesh = {.dp = 4}, .schedule = {.micro_batches = 2}, .exchange = {.zero = 2}},
                   reduction});
    out.push_back(
        {how + "_zero2_threshold",
         {.mesh = {.dp = 4}, .exchange = {.zero = 2, .selector = program::Selector::threshold}},
         reduction});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, SparseRuns, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rehearse::runtime
