// Compares methods that begin to compress after some steps, in real processes, with one process
// that follows their definition: 1-bit Adam (Tang et al., ICML 2021, algorithm 1) bit by bit, and
// PowerSGD (Vogels et al., NeurIPS 2019, algorithms 1 and 2) up to rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/program/low_rank.h"
#include "tests/runtime/exact_runs.h"
#include "tests/runtime/quantised_reference.h"

namespace rehearse::runtime {
namespace {

constexpr int steps = 6;

Groups summed(const job::Job& job, const std::vector<Groups>& by_worker) {
  Groups sum = zeros_of(job.model);
  for (Id g = 0; g < sum.size(); ++g)
    for (const Groups& worker : by_worker) sum[g] += worker[g];
  return sum;
}

std::vector<float> kept(const States& states, const std::string& name) {
  const std::string& bytes = states.at(name);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// The moments of all parameters, as Adam makes them before the freeze.
void follow_moments(const job::Job& job, const Groups& sum, Groups& moment, Groups& second) {
  const auto part = static_cast<float>(1 - job.train.beta1),
             keep2 = static_cast<float>(job.train.beta2),
             part2 = static_cast<float>(1 - job.train.beta2);
  for (Id g = 0; g < sum.size(); ++g) {
    auto* m = moment[g].data_ptr<float>();
    auto* v = second[g].data_ptr<float>();
    const auto* s = sum[g].data_ptr<float>();
    for (std::int64_t i = 0; i < sum[g].numel(); ++i) {
      m[i] = m[i] + (s[i] - m[i]) * part;
      v[i] = v[i] * keep2 + s[i] * s[i] * part2;
    }
  }
}

class OneBitAdamRuns : public testing::TestWithParam<plan::Plan> {};

TEST_P(OneBitAdamRuns, EqualOneProcessToTheBit) {
  ScratchFolder data;
  write_training_data(data);
  const job::Job job = conformance_job(GetParam(), data.path(), 20);
  const int freeze = *job.plan.exchange.quantised.freeze, n = job.plan.mesh.dp;
  const std::vector<States> ranks = run_sparse(job, steps);
  if (HasFailure()) return;
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  std::vector<QuantisedSum> buckets = quantised_sums(linked, job.model, job.train.seed);
  ASSERT_FALSE(buckets.empty());
  Groups moment = zeros_of(job.model), second = zeros_of(job.model);
  const auto keep = static_cast<float>(1 - job.train.beta1),
             part = static_cast<float>(job.train.beta1 * (1.0 / n));
  const auto sum_of = [&](std::int64_t step, const std::vector<Groups>& by_worker) {
    if (step < freeze) {
      const Groups sum = summed(job, by_worker);
      follow_moments(job, sum, moment, second);
      return sum;
    }
    Groups next = zeros_of(job.model);
    for (QuantisedSum& bucket : buckets) {
      EXPECT_TRUE(bucket.when.due(step));
      const std::vector<float> m = flat(bucket.pieces, moment, bucket.kernel.of);
      std::vector<std::vector<float>> parts;
      for (const Groups& worker : by_worker) {
        std::vector<float>& one = parts.emplace_back(flat(bucket.pieces, worker, bucket.kernel.of));
        for (std::size_t i = 0; i < one.size(); ++i) one[i] = keep * one[i] + part * m[i];
      }
      put(bucket.pieces, bucket(step, std::move(parts)), next);
    }
    // Entries that have had no gradient keep a moment of 0.
    for (Id g = 0; g < next.size(); ++g) moment[g].copy_(next[g] * (second[g] > 0));
    return next;
  };
  const Groups expected = train_exactly(job, steps, sum_of, freeze);
  bool owes = false;
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const Groups weights = weights_in(job, ranks[rank], rank);
    for (Id g = 0; g < weights.size(); ++g)
      ASSERT_TRUE(at::equal(weights[g], expected[g]))
          << "rank " << rank << ' ' << job.model.groups[g].name;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      ASSERT_EQ(ranks[rank].contains("R.b" + std::to_string(b)), buckets[b].feedback);
      if (!buckets[b].feedback) continue;
      ASSERT_EQ(kept(ranks[rank], "R.b" + std::to_string(b)), buckets[b].owed[rank]);
      ASSERT_EQ(kept(ranks[rank], "E.b" + std::to_string(b)), buckets[b].owed_of_sum[rank]);
      for (const float e : buckets[b].owed[rank]) owes = owes || e != 0;
    }
  }
  EXPECT_EQ(owes, buckets[0].feedback);
  // The moment that decides the update is the one that was sent: without it, weights differ.
  const Groups dense = train_exactly(
      job, steps, [&](std::int64_t, const auto& by_worker) { return summed(job, by_worker); });
  EXPECT_FALSE(at::equal(dense[0], expected[0]));
}
INSTANTIATE_TEST_SUITE_P(
    All, OneBitAdamRuns,
    testing::Values(plan::Plan{.method = "onebit-adam",
                               .mesh = {.dp = 2},
                               .exchange = {.quantised = {.freeze = 2}}},
                    plan::Plan{.method = "onebit-adam",
                               .mesh = {.dp = 2},
                               .schedule = {.micro_batches = 2},
                               .exchange = {.quantised = {.block = 64, .freeze = 4}}},
                    plan::Plan{.method = "onebit-adam",
                               .mesh = {.dp = 2},
                               .exchange = {.quantised = {.error_feedback = false, .freeze = 3}}}),
    [](const auto& info) {
      return "from_" + std::to_string(*info.param.exchange.quantised.freeze);
    });

/// A matrix of the program, with what ranks keep of it.
struct Matrix {
  std::int64_t rows = 0, columns = 0, rank = 0;
  Id group = none;
  std::int64_t offset = 0;            // in the group
  std::int64_t first_draw = 0;        // number of its right factor's first entry
  std::string residual = {};          // storage
  std::int64_t residual_begin = 0;    // in that storage
  at::Tensor right = {};              // (columns, rank)
  std::vector<at::Tensor> owed = {};  // by worker, (rows, columns)
};

/// The matrices that rank 0 sends as factors, from its program.
std::vector<Matrix> matrices_of(const job::Job& job) {
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const program::Program& p = linked.program;
  const program::Role& role = p.roles[linked.role_of[0]];
  const tensors::RankMap map = tensors::map_tensors(linked, job.model)[0];
  std::vector<Matrix> out;
  for (const program::Op& op : role.ops) {
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    if (kernel == nullptr || kernel->kind != program::KernelKind::project) continue;
    const program::Factors size = factors_of(p, role, op);
    Matrix m{.rows = size.rows, .columns = size.columns, .rank = size.rank};
    const program::View& grad = role.views[find(op, program::Slot::source)->view];
    for (const tensors::ParamPiece& piece : map.storages[grad.storage].pieces)
      if (piece.begin <= grad.begin && grad.begin < piece.end)
        m.group = piece.group, m.offset = piece.offset + grad.begin - piece.begin;
    const program::View& right = role.views[find(op, program::Slot::right)->view];
    for (const program::Op& other : role.ops)
      if (const auto* draw = std::get_if<program::Kernel>(&other.work);
          draw != nullptr && draw->kind == program::KernelKind::draw &&
          role.views[other.refs[0].view].storage == right.storage)
        m.first_draw = draw->of + right.begin;
    if (const program::Ref* residual = find(op, program::Slot::residual)) {
      m.residual = role.storages[role.views[residual->view].storage].name;
      m.residual_begin = role.views[residual->view].begin;
    }
    for (int worker = 0; worker < job.plan.mesh.dp; ++worker)
      m.owed.push_back(at::zeros({m.rows, m.columns}, at::kDouble));
    out.push_back(std::move(m));
  }
  return out;
}

/// Right factors as a step draws them: Box and Muller's normal numbers.
at::Tensor drawn(const job::Job& job, const Matrix& m, std::int64_t step) {
  const RandomKey key =
      random_key(job.train.seed, Draw::factor, static_cast<std::uint64_t>(step), 0);
  const at::Tensor out = at::zeros({m.rank, m.columns}, at::kDouble);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const auto at = static_cast<std::uint32_t>(2 * (m.first_draw + i));
    out.data_ptr<double>()[i] = std::sqrt(-2 * std::log(random_uniform(key, at))) *
                                std::cos(2 * std::numbers::pi * random_uniform(key, at + 1));
  }
  return out.t();
}

/// The columns of `p` made orthonormal, in their order.
at::Tensor orthonormal(const at::Tensor& p) {
  std::vector<at::Tensor> columns;
  for (std::int64_t k = 0; k < p.size(1); ++k) {
    at::Tensor column = p.select(1, k).clone();
    for (const at::Tensor& earlier : columns) column -= earlier * earlier.dot(column);
    columns.push_back(column / column.norm());
  }
  return at::stack(columns, 1);
}

class PowerSgdRuns : public testing::TestWithParam<plan::Plan> {};

TEST_P(PowerSgdRuns, FollowOneProcess) {
  ScratchFolder data;
  write_training_data(data);
  plan::Plan plan = GetParam();
  plan.optimizer = plan::Optimizer::sgd;  // which does not hide the size of a gradient
  const job::Job job = conformance_job(plan, data.path(), 20);
  const plan::Exchange& x = job.plan.exchange;
  const std::vector<States> ranks = run_sparse(job, steps);
  if (HasFailure()) return;
  std::vector<Matrix> matrices = matrices_of(job);
  ASSERT_GT(matrices.size(), 5U);
  const int n = job.plan.mesh.dp;
  const auto sum_of = [&](std::int64_t step, const std::vector<Groups>& by_worker) {
    Groups sum = summed(job, by_worker);
    if (step < *x.low_rank.start) return sum;
    for (Matrix& m : matrices) {
      const auto of = [&](const Groups& groups) {
        return groups[m.group].narrow(0, m.offset, m.rows * m.columns).view({m.rows, m.columns});
      };
      if (!*x.low_rank.warm_start || step == *x.low_rank.start)
        m.right = drawn(job, m, *x.low_rank.warm_start ? step - 1 : step);
      std::vector<at::Tensor> owing;
      at::Tensor left = at::zeros({m.rows, m.rank}, at::kDouble);
      at::Tensor all = at::zeros({m.rows, m.columns}, at::kDouble);
      for (int w = 0; w < n; ++w) {
        owing.push_back(of(by_worker[w]).to(at::kDouble) + m.owed[w]);
        left += owing[w].mm(m.right);
        all += owing[w];
      }
      left = orthonormal(left);
      m.right = all.t().mm(left);
      const at::Tensor said = left.mm(m.right.t());
      // The factors cannot say more than there was.
      EXPECT_LE(said.norm().item<double>(), all.norm().item<double>() * (1 + 1e-9));
      of(sum).copy_(said);
      if (!*x.quantised.error_feedback) continue;
      at::Tensor owed = at::zeros_like(all);
      for (int w = 0; w < n; ++w) m.owed[w] = owing[w] - said / n, owed += m.owed[w];
      // Nothing is lost: what is said and what is owed are what there was.
      EXPECT_LE((owed + said - all).norm().item<double>(), 1e-9 * all.norm().item<double>());
    }
    return sum;
  };
  const Groups expected = train_exactly(job, steps, sum_of);
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).norm().item<double>() / b.norm().item<double>();
  };
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const Groups weights = weights_in(job, ranks[rank], rank);
    for (Id g = 0; g < weights.size(); ++g) {
      EXPECT_LE(near(weights[g], expected[g]), 1e-5)
          << "rank " << rank << ' ' << job.model.groups[g].name;
      EXPECT_TRUE(at::equal(weights[g], weights_in(job, ranks[0], 0)[g])) << "ranks differ";
    }
    for (const Matrix& m : matrices) {
      ASSERT_EQ(m.residual.empty(), !*x.quantised.error_feedback);
      if (m.residual.empty()) continue;
      std::vector<float> owed = kept(ranks[rank], m.residual);
      const at::Tensor have =
          at::from_blob(owed.data() + m.residual_begin, {m.rows, m.columns}, at::kFloat);
      EXPECT_LE(near(have.to(at::kDouble), m.owed[rank]), 1e-3) << m.residual;
      EXPECT_GT(m.owed[rank].norm().item<double>(), 0);
    }
  }
  const Groups dense = train_exactly(
      job, steps, [&](std::int64_t, const auto& by_worker) { return summed(job, by_worker); });
  EXPECT_GT(near(dense[0], expected[0]), 1e-4) << "as if nothing had been compressed";
}
INSTANTIATE_TEST_SUITE_P(
    All, PowerSgdRuns,
    testing::Values(plan::Plan{.method = "powersgd",
                               .mesh = {.dp = 2},
                               .exchange = {.low_rank = {.rank = 1, .start = 2}}},
                    plan::Plan{.method = "powersgd",
                               .mesh = {.dp = 3},
                               .schedule = {.global_batch = 12, .micro_batches = 2},
                               .exchange = {.low_rank = {.rank = 4, .start = 3}}},
                    plan::Plan{
                        .method = "powersgd",
                        .mesh = {.dp = 2},
                        .exchange = {.quantised = {.error_feedback = false},
                                     .low_rank = {.rank = 2, .warm_start = false, .start = 0}}}),
    [](const auto& info) {
      return "of_rank_" + std::to_string(*info.param.exchange.low_rank.rank);
    });

}  // namespace
}  // namespace rehearse::runtime
