// Runs every registered method in real processes and compares it with single-process autograd that
// follows the method's definition: synchronous training, gradients of weights that are some steps
// old, sparse gradients with error feedback, or gradients applied in order of arrival.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/errors.h"
#include "engine/link/link.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"
#include "engine/tensors/tensor_map.h"
#include "tests/methods.h"
#include "tests/runtime/apart.h"
#include "tests/runtime/arrivals.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/numerics_cases.h"
#include "tests/runtime/quantised_reference.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

constexpr double tolerance = 1e-5;

/// Entries so near the cut of a selection that a rounding error decides which of them are sent.
struct Undecided {
  std::int64_t entries = 0;
  double largest = 0;  // of their sizes
};

/// An entry that is sent later than in the reference has grown by then, and takes the place of
/// another, which need not be near any cut. So it is known how many entries differ and how far, not
/// which: one for each undecided entry, by what two selections send. SparseRuns compares to the
/// bit.
void expect_selects_alike(const reference::Weights& weights, const reference::Weights& reference,
                          const Undecided& undecided, double lr) {
  std::int64_t others = 0;
  double furthest = 0;
  for (const auto& [name, tensor] : reference) {
    const at::Tensor apart = (weights.at(name) - tensor).abs();
    others += (apart > tolerance).sum().item<std::int64_t>();
    furthest = std::max(furthest, apart.max().item<double>());
  }
  EXPECT_LE(others, undecided.entries);
  EXPECT_LE(furthest, tolerance + 2 * lr * undecided.largest);
}

/// `coded`: gradients are codes of a few bits. A rounding error may change a code, and so a weight
/// by a whole step of the optimizer. QuantisedRuns compares such runs to the bit.
void expect_follows(const job::Job& job, const TrainedRun& run, const ReferenceRun& reference,
                    bool coded, const Undecided& undecided) {
  const double near = coded ? 10 * tolerance : tolerance;
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, near) << "loss of step " << step;
  EXPECT_LT(run.losses.back(), 0.98 * run.losses.front()) << "nothing was learnt";
  const reference::Weights weights = weights_of(run.checkpoint, job.model);
  EXPECT_NEAR(global_norm(weights) / global_norm(reference.weights), 1, near);
  EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, near);
  if (job.plan.optimizer == plan::Optimizer::sgd && !coded) {
    if (undecided.entries > 0)
      return expect_selects_alike(weights, reference.weights, undecided, job.train.lr);
    const auto [difference, name] = worst_difference(weights, reference.weights);
    EXPECT_LE(difference, tolerance) << name;
  }
}

/// Top-k with error feedback, from its definition: the program's buckets, selection by sorting.
class TopK {
 public:
  explicit TopK(const job::Job& job)
      : linked_(link::link(methods::compile(job.plan, job.model))),
        model_(job.model),
        map_(tensors::map_tensors(linked_, job.model)[0]),
        residuals_(job.plan.mesh.dp) {
    for (const program::Op& op : linked_.program.roles[0].ops)
      if (const auto* kernel = std::get_if<program::Kernel>(&op.work);
          kernel != nullptr && kernel->kind == program::KernelKind::select)
        keep_[linked_.program.roles[0].views[find(op, program::Slot::residual)->view].storage] =
            kernel->keep;
  }

  reference::Weights operator()(const std::vector<reference::Weights>& by_worker) {
    reference::Weights sum;
    for (const auto& [name, gradient] : by_worker[0]) sum[name] = at::zeros_like(gradient);
    for (const auto& [storage, keep] : keep_)
      for (std::size_t worker = 0; worker < by_worker.size(); ++worker) {
        std::vector<std::pair<std::string, std::int64_t>> where;  // by element of the bucket
        std::vector<float> values;
        for (const tensors::ParamPiece& piece : map_.storages[storage].pieces)
          for (const model::TensorSpec& spec : model_.groups[piece.group].tensors) {
            const at::Tensor flat = by_worker[worker].at(spec.name).contiguous().view(-1);
            for (std::int64_t i = 0; i < flat.numel(); ++i) where.emplace_back(spec.name, i);
            values.insert(values.end(), flat.data_ptr<float>(),
                          flat.data_ptr<float>() + flat.numel());
          }
        std::vector<float>& residual = residuals_[worker][storage];
        residual.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) residual[i] += values[i];
        std::vector<std::size_t> order(values.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return std::fabs(residual[a]) > std::fabs(residual[b]);
        });
        const auto size = [&](std::int64_t i) { return std::fabs(residual[order[i]]); };
        if (keep < std::ssize(order) && size(keep - 1) - size(keep) < 10 * tolerance * size(keep)) {
          undecided_.entries += 2;
          undecided_.largest = std::max<double>(undecided_.largest, size(keep));
        }
        for (std::int64_t i = 0; i < keep; ++i) {
          const auto& [name, element] = where[order[i]];
          sum.at(name).view(-1).data_ptr<float>()[element] += residual[order[i]];
          residual[order[i]] = 0;
        }
      }
    return sum;
  }
  /// Of all selections so far.
  const Undecided& undecided() const { return undecided_; }

 private:
  Undecided undecided_ = {};
  link::LinkedProgram linked_;
  const model::ModelSpec& model_;
  tensors::RankMap map_;
  std::map<Id, std::int64_t> keep_ = {};
  std::vector<std::map<Id, std::vector<float>>> residuals_;
};

/// Quantised sums from their definition, in the program's buckets.
class Quantised {
 public:
  explicit Quantised(const job::Job& job) : model_(job.model) {
    const link::LinkedProgram linked = link::link(methods::compile(job.plan, job.model));
    buckets_ = quantised_sums(linked, job.model, job.train.seed);
  }
  bool sums() const { return !buckets_.empty(); }

  reference::Weights operator()(int step, const std::vector<reference::Weights>& by_worker) {
    reference::Weights out;
    for (QuantisedSum& bucket : buckets_) {
      std::vector<std::vector<float>> gradients(by_worker.size());
      for (std::size_t worker = 0; worker < by_worker.size(); ++worker)
        for (const model::TensorSpec* spec : tensors_in(bucket)) {
          const at::Tensor flat = by_worker[worker].at(spec->name).contiguous().view(-1);
          gradients[worker].insert(gradients[worker].end(), flat.data_ptr<float>(),
                                   flat.data_ptr<float>() + flat.numel());
        }
      const std::vector<float> sum =
          bucket.when.due(step) ? bucket(step, std::move(gradients)) : summed_whole(gradients);
      const float* next = sum.data();
      for (const model::TensorSpec* spec : tensors_in(bucket)) {
        at::Tensor& one = out[spec->name] = at::empty_like(by_worker[0].at(spec->name));
        std::copy_n(next, one.numel(), one.data_ptr<float>());
        next += one.numel();
      }
    }
    return out;
  }

 private:
  static std::vector<float> summed_whole(const std::vector<std::vector<float>>& gradients) {
    std::vector<float> sum(gradients.front().size());
    for (const std::vector<float>& one : gradients)
      std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
    return sum;
  }
  std::vector<const model::TensorSpec*> tensors_in(const QuantisedSum& bucket) const {
    std::vector<const model::TensorSpec*> out;
    for (const tensors::ParamPiece& piece : bucket.pieces)
      for (const model::TensorSpec& spec : model_.groups[piece.group].tensors) out.push_back(&spec);
    return out;
  }

  const model::ModelSpec& model_;
  std::vector<QuantisedSum> buckets_ = {};
};

/// An order in which a server takes the gradients of two workers: first alternating in various
/// ways, then worker 0 twice as often as worker 1.
std::vector<int> an_order(std::int64_t steps) {
  std::vector<int> order;
  for (const int worker : {0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0})
    if (static_cast<std::int64_t>(order.size()) < 2 * steps) order.push_back(worker);
  while (static_cast<std::int64_t>(order.size()) < 2 * steps)
    order.push_back(static_cast<int>(order.size() % 3) / 2);
  order.back() = 1 - order[order.size() - 2];  // in the last step each worker has one turn
  return order;
}

void expect_follows_in_order(const job::Job& job, const std::string& folder) {
  const std::vector<int> order = an_order(job.train.steps);
  const ServedRun run = train_in_order(job, order, folder);
  if (testing::Test::HasFailure()) return;
  const ServedRun reference = reference_in_order(job, order);
  for (std::size_t worker = 0; worker < run.losses.size(); ++worker) {
    ASSERT_EQ(run.losses[worker].size(), reference.losses[worker].size());
    for (std::size_t step = 0; step < reference.losses[worker].size(); ++step)
      EXPECT_NEAR(run.losses[worker][step] / reference.losses[worker][step], 1, tolerance)
          << "worker " << worker << " step " << step;
  }
  EXPECT_NEAR(global_norm(run.weights) / global_norm(reference.weights), 1, tolerance);
  if (job.plan.optimizer == plan::Optimizer::sgd) {
    const auto [difference, name] = worst_difference(run.weights, reference.weights);
    EXPECT_LE(difference, tolerance) << name;
  }
  // The order matters: with the two workers exchanged, the weights are different.
  std::vector<int> other = order;
  for (int& worker : other) worker = 1 - worker;
  EXPECT_GT(worst_difference(reference_in_order(job, other).weights, reference.weights).first,
            100 * tolerance);
}

class Method : public testing::TestWithParam<NumericsCase> {};

TEST_P(Method, FollowsItsReference) {
  const ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job(GetParam().plan, data.path(), out.path(), GetParam().model);
  if (job.plan.clip) job.train.clip = 0.5;
  const program::Program program = program_of(job);
  const auto any_op = [&](const auto& is) {
    return std::any_of(program.roles.begin(), program.roles.end(), [&](const program::Role& role) {
      return std::any_of(role.ops.begin(), role.ops.end(), is);
    });
  };
  if (serves_by_arrival(program)) {
    // The test delays a gradient until the step of its loss is delivered; an asynchronous device
    // has sent it by then.
    if (test_device() == "queues")
      GTEST_SKIP() << "the order of arrivals is decided on the CPU only";
    // Stale gradients make rounding errors grow, for LLaMA beyond the tolerance after 20 steps.
    if (GetParam().model == "llama-tiny") job.train.steps = 12;
    expect_follows_in_order(job, out.path());
    return;
  }
  // Rounding errors of weights that differ grow, for LLaMA beyond the tolerance after 20 steps.
  if (trains_apart(job) && GetParam().model == "llama-tiny") job.train.steps = 12;
  ReferenceRules rules;
  // Votes are of size 1, however small the gradient is: SGD needs steps as small as Adam's.
  if (any_op([](const program::Op& op) {
        const auto* kernel = std::get_if<program::Kernel>(&op.work);
        return kernel != nullptr && kernel->compressor == program::Compressor::vote;
      }) &&
      job.plan.optimizer == plan::Optimizer::sgd)
    job.train.lr = 1e-3;
  // A gradient is computed with the oldest version of the weights that a rank keeps.
  const methods::GradientSync& sync = methods::strategy_named(job.plan.method).sync(job.plan);
  for (int stage = 0; stage < job.plan.mesh.pp; ++stage)
    rules.staleness.push_back(sync.weight_versions(job.plan, job.model, stage) - 1);
  std::optional<TopK> rule;
  if (any_op([](const program::Op& op) {
        const auto* kernel = std::get_if<program::Kernel>(&op.work);
        return kernel != nullptr && kernel->kind == program::KernelKind::select;
      })) {
    // Each entry that a rounding error chooses changes the gradients that follow, so run few steps.
    job.train.steps = 10;
    rule.emplace(job);
    rules.workers = job.plan.mesh.dp;
    rules.combine = [&](int, const auto& by_worker) { return (*rule)(by_worker); };
  }
  Quantised quantised(job);
  if (quantised.sums()) {
    // A rounding error may change a code, so run few steps.
    job.train.steps = 10;
    rules.workers = job.plan.mesh.dp;
    rules.combine = [&](int step, const auto& by_worker) { return quantised(step, by_worker); };
  }
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  const ReferenceRun reference =
      trains_apart(job) ? train_apart(job).mean : reference_of(job, rules);
  expect_follows(job, run, reference, quantised.sums(), rule ? rule->undecided() : Undecided());
}
std::string name_of(const testing::TestParamInfo<NumericsCase>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Registry, Method, testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Llama, Method, testing::ValuesIn(with_llama(true)), name_of);
INSTANTIATE_TEST_SUITE_P(Gemma, Method, testing::ValuesIn(with_gemma()), name_of);
INSTANTIATE_TEST_SUITE_P(Experts, Method, testing::ValuesIn(with_experts()), name_of);
INSTANTIATE_TEST_SUITE_P(LongLlama, Method, testing::ValuesIn(with_llama(false)), name_of);

TEST(Numerics, MaskedModelsFollowThoughRanksCountDifferently) {
  ScratchFolder data;
  write_data(data);
  for (const plan::Plan& plan :
       {plan::Plan{
            .method = "megatron", .mesh = {.dp = 2, .tp = 2}, .optimizer = plan::Optimizer::sgd},
        // With 3 ranks, shards end in padding after the groups that are not split over tp.
        plan::Plan{.method = "zero2",
        .mesh = {.dp = 3, .tp = 2},
        .schedule = {.global_batch = 12},
        .clip = true,
        .optimizer = plan::Optimizer::sgd}}) {
    SCOPED_TRACE(plan.method);
    const ScratchFolder out;
    const job::Job job = small_job(plan, data.path(), out.path(), "bert-tiny");
    const TrainedRun run = train_in_processes(job);
    if (HasFailure()) return;
    const ReferenceRun reference = train_reference(job);
    ASSERT_EQ(run.losses.size(), reference.losses.size());
    for (std::size_t step = 0; step < run.losses.size(); ++step)
      EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, tolerance) << "step " << step;
    EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, tolerance);
    EXPECT_NEAR(global_norm(weights_of(run.checkpoint, job.model)) / global_norm(reference.weights),
                1, tolerance);
  }
}

TEST(Numerics, DropoutDoesNotDependOnTheMesh) {
  ScratchFolder data, out;
  write_data(data);
  const auto losses = [&](const plan::Plan& plan) {
    job::Job job = small_job(plan, data.path(), "");
    job.model.dropout = 0.1;
    job.train.steps = 6;
    return train_in_processes(job).losses;
  };
  const std::vector<double> one = losses({.method = "ddp", .optimizer = plan::Optimizer::sgd});
  const std::vector<double> many = losses({.method = "megatron",
                                           .mesh = {.pp = 2, .dp = 2, .tp = 2},
                                           .schedule = {.micro_batches = 2},
                                           .optimizer = plan::Optimizer::sgd});
  // What is computed again drops the same elements.
  const std::vector<double> again =
      losses({.method = "megatron",
              .mesh = {.tp = 2, .sequence_parallel = true},
              .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer},
              .optimizer = plan::Optimizer::sgd});
  if (HasFailure()) return;
  ASSERT_EQ(one.size(), many.size());
  ASSERT_EQ(one.size(), again.size());
  for (std::size_t step = 0; step < one.size(); ++step) {
    EXPECT_NEAR(many[step] / one[step], 1, tolerance) << "step " << step;
    EXPECT_NEAR(again[step] / one[step], 1, tolerance) << "step " << step;
  }
  job::Job without =
      small_job({.method = "ddp", .optimizer = plan::Optimizer::sgd}, data.path(), "");
  without.train.steps = 6;
  EXPECT_GT(std::fabs(train_in_processes(without).losses[0] / one[0] - 1), 1e-4)
      << "dropout did nothing";
}

/// Other software gathers the logits of all tensor ranks. The runtime sends as many bytes, and
/// computes the same loss.
TEST(Numerics, RoomForGatheredLogitsChangesNoLoss) {
  ScratchFolder data;
  write_data(data);
  const auto train = [&](software::Logits logits) {
    const ScratchFolder out;
    job::Job job = small_job({.method = "megatron",
                              .mesh = {.dp = 2, .tp = 2},
                              .schedule = {.micro_batches = 2, .shares = {3, 1}},
                              .optimizer = plan::Optimizer::sgd},
                             data.path(), out.path());
    job.train.steps = 5;
    job.model.software.logits = logits;
    return train_in_processes(job);
  };
  const TrainedRun divided = train(software::Logits::divided);
  const TrainedRun gathered = train(software::Logits::gathered);
  if (HasFailure()) return;
  EXPECT_EQ(gathered.losses, divided.losses);
  EXPECT_EQ(gathered.validation_loss, divided.validation_loss);
}

class Asynchronous : public testing::TestWithParam<const char*> {};

TEST_P(Asynchronous, WorkersOfSeveralServersLearn) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job(
      {.method = GetParam(), .mesh = {.dp = 2, .servers = 2}, .optimizer = plan::Optimizer::sgd},
      data.path(), out.path());
  job.train.eval_every = 10;
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  ASSERT_EQ(run.losses.size(), 20U);
  EXPECT_LT(run.losses.back(), 0.98 * run.losses.front());
  EXPECT_LT(run.validation_loss, 0.98 * run.losses.front());
}
INSTANTIATE_TEST_SUITE_P(Methods, Asynchronous, testing::Values("ps-async", "byteps-async"));

}  // namespace
}  // namespace rehearse::runtime
