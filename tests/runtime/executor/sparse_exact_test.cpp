// Compares sparse exchanges in four real processes with one process that follows eq. 4 and 5 of Sun
// 2026: gradients by the same blocks, selection by sorting, sums in the order of ranks. Weights
// must be equal bit by bit, for every form of error feedback and every reduction.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/names.h"
#include "runtime/kernels/sparsify.h"
#include "tests/runtime/exact_runs.h"

namespace rehearse::runtime {
namespace {

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
  const SelectStep now{.step = step, .seed = job.train.seed};
  select(bucket.kernel, now, g.data(), program::DType::f32, e.data(), threshold, packet.data(),
         scratch);
  std::vector<float> sent(g.size());
  scatter_add(bucket.kernel, now, packet.data(), 1, 0, bucket.kernel.of, sent.data(), scratch);
  return sent;
}

struct Sender {
  std::vector<float> residual = {};
  float threshold[2] = {};
};

/// The weights after `steps` steps in a single process.
Groups emulate(const job::Job& job, int steps, plan::Reduction reduction) {
  const std::vector<Chosen> buckets = chosen_in(job);
  std::map<std::pair<std::size_t, Id>, Sender> senders;  // (bucket, node or rank)
  return train_exactly(job, steps, [&](std::int64_t step, const std::vector<Groups>& by_worker) {
    Groups sum = zeros_of(job.model);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::map<Id, std::vector<float>> parts;  // by sender: its gradient
      for (Id worker = 0; worker < by_worker.size(); ++worker) {
        const std::vector<float> mine =
            flat(buckets[b].pieces, by_worker[worker], buckets[b].kernel.of);
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
      put(buckets[b].pieces, all, sum);
    }
    return sum;
  });
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
      out.push_back({fmt::format("{}_{}", name_of(reduction), name_of(form)),
                     {.mesh = {.dp = 4},
                      .exchange = {.sparse = {.feedback = form}},
                      .optimizer = plan::Optimizer::sgd},
                     reduction});
  for (const plan::Reduction reduction : {plan::Reduction::sparse, plan::Reduction::two_level}) {
    const std::string how(name_of(reduction));
    out.push_back({how + "_adamw", {.mesh = {.dp = 4}}, reduction});
    out.push_back(
        {how + "_random",
         {.mesh = {.dp = 4}, .exchange = {.sparse = {.selector = program::Selector::random_k}}},
         reduction});
    out.push_back(
        {how + "_threshold",
         {.mesh = {.dp = 4}, .exchange = {.sparse = {.selector = program::Selector::threshold}}},
         reduction});
    out.push_back({how + "_zero1_accumulating",
                   {.mesh = {.dp = 4},
                    .schedule = {.micro_batches = 2},
                    .exchange = {.sharding = {.zero = 1}}},
                   reduction});
    out.push_back({how + "_zero2_accumulating",
                   {.mesh = {.dp = 4},
                    .schedule = {.micro_batches = 2},
                    .exchange = {.sharding = {.zero = 2}}},
                   reduction});
    out.push_back({how + "_zero2_threshold",
                   {.mesh = {.dp = 4},
                    .exchange = {.sharding = {.zero = 2},
                                 .sparse = {.selector = program::Selector::threshold}}},
                   reduction});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, SparseRuns, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rehearse::runtime
