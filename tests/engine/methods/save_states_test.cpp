// Checkpoints behind training, for every method that can have them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/refusal.h"
#include "engine/tensors/tensor_parts.h"
#include "tests/engine/rig.h"
#include "tests/methods.h"

namespace rehearse {
namespace {

using test::plan_of;

struct Shape {
  int pp = 1, dp = 1, tp = 1, virtual_stages = 1;
};
constexpr Shape shapes[] = {{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {2, 2, 1},
                            {1, 2, 2}, {2, 1, 2}, {2, 2, 2}, {4, 1, 1}};

/// The elements of each tensor (of one kind, age, copy and tp rank) that some rank saves, as sorted
/// intervals that do not overlap.
using Whole = std::tuple<tensors::StorageKind, int, std::string, int, int>;
std::map<Whole, std::vector<std::pair<std::int64_t, std::int64_t>>> intervals(
    const std::vector<std::vector<tensors::TensorPart>>& by_rank) {
  std::map<Whole, std::vector<std::pair<std::int64_t, std::int64_t>>> out;
  for (const auto& parts : by_rank)
    for (const tensors::TensorPart& p : parts)
      out[{p.key.kind, p.key.age, p.key.tensor, p.key.copy, p.key.tp_rank}].emplace_back(
          p.key.begin, p.key.end);
  for (auto& [whole, parts] : out) {
    std::sort(parts.begin(), parts.end());
    std::vector<std::pair<std::int64_t, std::int64_t>> joined;
    for (const auto& [begin, end] : parts)
      if (!joined.empty() && begin <= joined.back().second)
        joined.back().second = std::max(joined.back().second, end);
      else
        joined.emplace_back(begin, end);
    parts = std::move(joined);
  }
  return out;
}

class SaveStates : public testing::TestWithParam<std::string> {
 protected:
  /// Calls f(plan) for each shape that the method takes.
  template <class F>
  void each(F f) {
    test::Refusals refusals;
    int tried = 0;
    for (const Shape& shape : shapes) {
      plan::Plan plan = plan_of(GetParam(), shape.pp, shape.dp, shape.tp, 2 * shape.pp);
      plan.schedule.global_batch = 2 * shape.dp * plan.schedule.micro_batches;
      plan.precision = program::DType::bf16;
      if (!test::allowed(plan, model_)) continue;
      plan::Plan without = plan;
      try {
        methods::compile(without, model_);
      } catch (const InputError&) {
        continue;
      }
      plan.checkpoints.every = 3;
      SCOPED_TRACE(testing::Message() << shape.pp << " x " << shape.dp << " x " << shape.tp);
      ++tried;
      f(plan);
    }
    EXPECT_GT(tried, 0);
  }
  bool lockstep() const { return methods::strategy_named(GetParam()).combines.lockstep; }

  const model::ModelSpec model_ = test::small_model(4);
};

TEST_P(SaveStates, EveryStateIsSavedOnce) {
  each([&](const plan::Plan& plan) {
    if (!lockstep()) {
      EXPECT_THROW(methods::compile(plan, model_), Refused);
      return;
    }
    const link::LinkedProgram linked = link::link(methods::compile(plan, model_));
    const std::vector<tensors::RankMap> maps = tensors::map_tensors(linked, model_);
    const auto saved = snapshot_parts(linked, model_, maps);
    const auto found = intervals(saved);
    EXPECT_EQ(found, intervals(owned_parts(linked, model_, maps)));
    std::set<std::string> weights;
    for (const auto& [whole, parts] : found)
      if (std::get<0>(whole) == tensors::StorageKind::param) weights.insert(std::get<2>(whole));
    for (const model::ParamGroup& group : model_.groups)
      for (const model::TensorSpec& tensor : group.tensors)
        EXPECT_TRUE(weights.contains(tensor.name)) << tensor.name;
    // The parts of a rank lie in its snapshot.
    for (Id rank = 0; rank < saved.size(); ++rank)
      for (const tensors::TensorPart& part : saved[rank]) {
        const program::Storage& storage =
            linked.program.roles[linked.role_of[rank]].storages[part.storage];
        EXPECT_EQ(storage.place, program::Place::host);
        EXPECT_LE(part.begin + part.key.end - part.key.begin, storage.elements);
        EXPECT_LE(part.key.age, storage.indices);
      }
  });
}

TEST_P(SaveStates, RanksWithEqualPartsDivideThem) {
  each([&](plan::Plan plan) {
    plan.checkpoints.every = 0;
    const link::LinkedProgram linked = link::link(methods::compile(plan, model_));
    const std::vector<tensors::RankMap> maps = tensors::map_tensors(linked, model_);
    const auto owned = owned_parts(linked, model_, maps);
    const auto shared = shared_parts(linked, model_, maps);
    EXPECT_EQ(intervals(shared), intervals(owned));
    // Where one rank owned everything, no rank has much more than its share now.
    const auto elements = [](const std::vector<tensors::TensorPart>& parts) {
      std::int64_t sum = 0;
      for (const tensors::TensorPart& part : parts) sum += part.key.end - part.key.begin;
      return sum;
    };
    if (plan.method != "ddp" || plan.mesh.dp < 2) return;
    for (const auto& parts : shared)
      EXPECT_LT(static_cast<double>(elements(parts)),
                1.25 * static_cast<double>(elements(owned[0])) / plan.mesh.dp);
  });
}

TEST_P(SaveStates, OnlyTheHostsMemoryGrows) {
  if (!lockstep()) return;
  each([&](plan::Plan plan) {
    const link::LinkedProgram with = link::link(methods::compile(plan, model_));
    plan.checkpoints.every = 0;
    const link::LinkedProgram without = link::link(methods::compile(plan, model_));
    for (Id r = 0; r < with.memory.size(); ++r) {
      EXPECT_EQ(with.memory[r].total(), without.memory[r].total());
      EXPECT_EQ(without.memory[r].snapshots, 0);
      EXPECT_EQ(with.memory[r].snapshots > 0, without.memory[r].state > 0);
      EXPECT_EQ(with.memory[r].host, without.memory[r].host + with.memory[r].snapshots);
      EXPECT_LE(with.memory[r].snapshots, without.memory[r].state + without.memory[r].host);
    }
  });
}

// The linker proves that no update overtakes the snapshot, and no snapshot the write: without these
// waits it refuses the program.
TEST_P(SaveStates, TheWaitsAreNeeded) {
  if (!lockstep()) return;
  const bool pipeline =
      GetParam() == "interleaved" || !test::allowed(plan_of(GetParam(), 1, 2, 1, 2), model_);
  plan::Plan plan = pipeline ? plan_of(GetParam(), 2, 2, 1, 4) : plan_of(GetParam(), 1, 2, 1, 2);
  plan.checkpoints.every = 3;
  program::Program program = methods::compile(plan, model_);
  int refused = 0, waits = 0;
  for (program::Role& role : program.roles)
    for (program::Op& op : role.ops) {
      const auto on_copy = [&](const program::After& after) {
        const auto& work = role.ops[after.op].work;
        return after.lag == 1 && (std::holds_alternative<program::Copy>(work) ||
                                  std::holds_alternative<program::Save>(work));
      };
      if (std::none_of(op.after.begin(), op.after.end(), on_copy)) continue;
      const auto kept = op.after;
      std::erase_if(op.after, on_copy);
      ++waits;
      try {
        link::link(program);
      } catch (const ProgramError&) {
        ++refused;
      }
      op.after = kept;
    }
  EXPECT_GT(waits, 0);
  EXPECT_EQ(refused, waits);
}

TEST_P(SaveStates, TheTextIsReadBack) {
  if (!lockstep()) return;
  each([&](const plan::Plan& plan) {
    const program::Program program = methods::compile(plan, model_);
    EXPECT_EQ(to_text(program::parse_program(to_text(program))), to_text(program));
  });
}

INSTANTIATE_TEST_SUITE_P(All, SaveStates, testing::ValuesIn(test::all_methods()),
                         test::method_name);

// Replicas share the work: with dp ranks each copies a dp-th of the weights and moments.
TEST(SaveStatesOf, ReplicasSaveEqualParts) {
  const model::ModelSpec model = test::small_model(4);
  const auto host = [&](int dp) {
    plan::Plan plan = plan_of("ddp", 1, dp, 1, 1);
    plan.checkpoints.every = 1;
    return static_cast<double>(link::link(methods::compile(plan, model)).memory.front().host);
  };
  EXPECT_NEAR(host(4) / host(1), 0.25, 0.01);
}

TEST(SaveStatesOf, CopiesAndSavesOnlyAtTheirSteps) {
  const auto steps = [](program::When when) {
    std::vector<int> out;
    for (int step = 0; step < 10; ++step)
      if (when.due(step)) out.push_back(step);
    return out;
  };
  EXPECT_EQ(steps({}).size(), 10U);
  EXPECT_EQ(steps({.every = 3}), (std::vector{2, 5, 8}));
  EXPECT_EQ(steps({.from = 7}), (std::vector{7, 8, 9}));
  EXPECT_EQ(steps({.until = 2}), (std::vector{0, 1}));
  EXPECT_EQ(steps({.every = 2, .from = 2, .until = 7}), (std::vector{3, 5}));
}

}  // namespace
}  // namespace rehearse
