// Properties of sparse exchanges in real processes that hold for any gradients: with all entries
// kept, the result is the dense sum; copies of weights stay equal bit by bit; after a step that
// overflows on one rank, the state of every rank is unchanged except for the loss scale.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "engine/base/names.h"
#include "engine/tensors/tensor_map.h"
#include "runtime/kernels/floats.h"
#include "tests/runtime/sparse_job.h"

namespace rehearse::runtime {
namespace {

std::string read_text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct Case {
  std::string name = {};
  plan::Plan plan = {};
  plan::Reduction reduction = plan::Reduction::sparse;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// All copies of the weights as bytes, by (parameter group, tp rank); tp rank 0 if the group is not
/// split.
using Copies = std::map<std::pair<Id, int>, std::vector<std::string>>;
Copies copies_of(const job::Job& job, const std::vector<States>& ranks) {
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const std::vector<tensors::RankMap> maps = tensors::map_tensors(linked, job.model);
  Copies out;
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const program::Role& role = linked.program.roles[linked.role_of[rank]];
    for (Id s = 0; s < role.storages.size(); ++s) {
      if (maps[rank].storages[s].kind != tensors::StorageKind::param) continue;
      const auto width = static_cast<std::size_t>(size_of(role.storages[s].dtype));
      for (const tensors::ParamPiece& p : maps[rank].storages[s].pieces)
        out[{p.group, job.model.groups[p.group].split ? maps[rank].tp_rank : 0}].push_back(
            ranks[rank]
                .at(role.storages[s].name)
                .substr(static_cast<std::size_t>(p.begin) * width,
                        static_cast<std::size_t>(p.end - p.begin) * width));
    }
  }
  return out;
}

class SparseInvariants : public testing::TestWithParam<Case> {};

TEST_P(SparseInvariants, CopiesOfWeightsStayEqual) {
  ScratchFolder data;
  write_training_data(data);
  const job::Job job = sparse_job(GetParam().plan, GetParam().reduction, 0.1, data.path());
  const std::vector<States> ranks = run_sparse(job, 6);
  if (HasFailure()) return;
  std::size_t several = 0;
  for (const auto& [key, copies] : copies_of(job, ranks)) {
    several += copies.size() > 1;
    for (const std::string& copy : copies)
      EXPECT_EQ(copy, copies.front()) << job.model.groups[key.first].name;
  }
  EXPECT_GT(several, 0U);
}

TEST_P(SparseInvariants, KeepingAllIsTheDenseSum) {
  ScratchFolder data;
  write_training_data(data);
  const auto run = [&](plan::Reduction reduction, double density) {
    const job::Job job = sparse_job(GetParam().plan, reduction, density, data.path());
    return copies_of(job, run_sparse(job, 6));
  };
  const Copies dense = run(plan::Reduction::dense, 1), all = run(GetParam().reduction, 1),
               part = run(GetParam().reduction, 0.05);
  if (HasFailure()) return;
  const bool wide = GetParam().plan.precision == program::DType::f32;
  double worst = 0, apart = 0;
  for (const auto& [key, copies] : dense) {
    const auto floats = [&](const std::string& bytes) {
      return at::from_blob(const_cast<char*>(bytes.data()),
                           {static_cast<std::int64_t>(bytes.size()) / (wide ? 4 : 2)},
                           wide                                                ? at::kFloat
                           : GetParam().plan.precision == program::DType::bf16 ? at::kBFloat16
                                                                               : at::kHalf)
          .to(at::kDouble);
    };
    const at::Tensor a = floats(copies.front());
    const auto distance = [&](const Copies& other) {
      return ((floats(other.at(key).front()) - a).norm() / (a.norm() + 1e-30)).item<double>();
    };
    worst = std::max(worst, distance(all));
    apart = std::max(apart, distance(part));
  }
  EXPECT_LT(worst, wide ? 1e-5 : 0.02);
  EXPECT_GT(apart, 10 * worst) << "leaving out 95% changed nothing";
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const plan::Reduction reduction : {plan::Reduction::sparse, plan::Reduction::two_level}) {
    const std::string how(name_of(reduction));
    const auto add = [&](const std::string& name, plan::Plan plan) {
      plan.optimizer = plan::Optimizer::sgd;
      out.push_back({fmt::format("{}_{}", how, name), plan, reduction});
    };
    add("dp4", {.mesh = {.dp = 4}});
    add("dp4_clipped", {.mesh = {.dp = 4}, .clip = true});
    add("tp2_dp2", {.mesh = {.dp = 2, .tp = 2}});
    add("zero2_dp4", {.mesh = {.dp = 4},
                      .schedule = {.micro_batches = 2},
                      .exchange = {.sharding = {.zero = 2}}});
    add("zero1_tp2_dp2", {.mesh = {.dp = 2, .tp = 2}, .exchange = {.sharding = {.zero = 1}}});
    add("bf16_dp4", {.mesh = {.dp = 4}, .precision = program::DType::bf16});
    add("fp16_zero2_dp4", {.mesh = {.dp = 4},
                           .exchange = {.sharding = {.zero = 2}},
                           .precision = program::DType::f16});
    add("unequal_dp3", {.mesh = {.dp = 3}, .schedule = {.global_batch = 8, .shares = {4, 2, 2}}});
  }
  // Copies of the tied token table on two stages; the replicas of both are placed alike on nodes.
  out.push_back({"sparse_tied_pp2_dp2",
                 {.mesh = {.pp = 2, .dp = 2}, .optimizer = plan::Optimizer::sgd},
                 plan::Reduction::sparse});
  out.push_back({"sparse_tied_interleaved_random",
                 {.mesh = {.pp = 2, .dp = 2},
                  .schedule = {.virtual_stages = 2},
                  .exchange = {.sparse = {.selector = program::Selector::random_k}},
                  .optimizer = plan::Optimizer::sgd},
                 plan::Reduction::sparse});
  out.push_back({"sparse_tied_threshold_gpipe",
                 {.mesh = {.pp = 2, .dp = 2},
                  .schedule = {.pipeline = plan::Pipeline::gpipe},
                  .exchange = {.sparse = {.selector = program::Selector::threshold}},
                  .optimizer = plan::Optimizer::sgd},
                 plan::Reduction::sparse});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, SparseInvariants, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

class SparseOverflow : public testing::TestWithParam<Case> {};

TEST_P(SparseOverflow, OnOneRankLeavesAllAsTheyWere) {
  ScratchFolder data;
  write_training_data(data);
  plan::Plan plan = GetParam().plan;
  plan.precision = program::DType::f16;
  const job::Job job = sparse_job(plan, GetParam().reduction, 0.1, data.path());
  constexpr int steps = 4;
  const std::string before = data.path() + "/before-";
  const int culprit = plan.mesh.pp * plan.mesh.dp * plan.mesh.tp - 1;
  const std::vector<States> after = run_sparse(job, steps, [&](RankRun& run, int rank) {
    write_text(before + std::to_string(rank), packed(states_of(run.executor, steps - 1)));
    if (rank != culprit) return;
    // Forward and backward use this weight; an update would restore it from its fp32 master.
    const program::Role& role = run.executor.role();
    for (Id s = 0; s < role.storages.size(); ++s)
      if (role.storages[s].name.starts_with("W.")) {
        const std::uint16_t half = to_f16(std::numeric_limits<float>::infinity());
        run.executor.edit_state(s, steps - 1, 1, [&](std::span<std::byte> bytes) {
          std::memcpy(bytes.data(), &half, sizeof half);
        });
        return;
      }
  });
  if (HasFailure()) return;
  std::set<std::string> seen;
  for (int rank = 0; rank < culprit; ++rank) {
    const States was = unpacked(read_text(before + std::to_string(rank)));
    for (const auto& [name, bytes] : after[static_cast<std::size_t>(rank)]) {
      seen.insert(name.substr(0, 2));
      if (name == "scale") {
        float old = 0, now = 0;
        std::memcpy(&old, was.at(name).data(), 4);
        std::memcpy(&now, bytes.data(), 4);
        EXPECT_EQ(now, old / 2) << "rank " << rank;
      } else {
        EXPECT_EQ(bytes, was.at(name)) << "rank " << rank << ' ' << name;
      }
    }
  }
  EXPECT_TRUE(seen.contains("R."));
}

INSTANTIATE_TEST_SUITE_P(
    All, SparseOverflow,
    testing::ValuesIn(std::vector<Case>{
        {"sparse_dp4", {.mesh = {.dp = 4}}, plan::Reduction::sparse},
        {"sparse_threshold_zero2",
         {.mesh = {.dp = 4},
          .exchange = {.sharding = {.zero = 2},
                       .sparse = {.selector = program::Selector::threshold}}},
         plan::Reduction::sparse},
        {"two_level_dp4", {.mesh = {.dp = 4}}, plan::Reduction::two_level},
        {"sparse_pp2_dp2", {.mesh = {.pp = 2, .dp = 2}}, plan::Reduction::sparse},
        {"sparse_tp2_dp2", {.mesh = {.dp = 2, .tp = 2}}, plan::Reduction::sparse},
    }),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rehearse::runtime
