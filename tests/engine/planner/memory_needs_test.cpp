// Tests the memory check and its remedies. Each remedy is applied to the plan, compiled and linked:
// it fits, and no change before it in the documented order fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/link/workspace.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/memory/remedy.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

cluster::Cluster with_memory(int devices, std::int64_t bytes) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(static_cast<double>(bytes)),
                              .peak_f32 = FlopsPerSecond(1e12),
                              .memory_bandwidth = BytesPerSecond(1e12)});
  const Id hub = c.add_vertex("switch");
  for (int i = 0; i < devices; ++i)
    c.connect(c.vertex_of(c.add_device("gpu" + std::to_string(i), kind, 0)), hub,
              "cable" + std::to_string(i), BytesPerSecond(1e9), Seconds(1e-6));
  return c;
}

std::int64_t need_of(const plan::Plan& plan, const model::ModelSpec& model) {
  const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
  std::int64_t most = 0;
  for (const link::RoleMemory& memory : linked.memory) most = std::max(most, memory.total());
  return most;
}

/// The plan with the changes of a remedy, read as --set reads them.
plan::Plan applied(plan::Plan plan, const Remedy& remedy) {
  for (const std::string& change : remedy.changes) {
    const std::string key = change.substr(0, change.find('='));
    const std::string value = change.substr(change.find('=') + 1);
    if (key == "method.name")
      plan.method = value,
      plan.exchange.sharding.zero = value.starts_with("zero") ? value.back() - '0' : 0;
    else if (key == "method.recompute")
      plan.schedule.recompute = value == "true";
    else if (key == "method.offload")
      plan.exchange.offload = value == "none" ? plan::Offload::none : plan::Offload::optimizer;
    else
      (key == "method.micro_batches" ? plan.schedule.micro_batches
       : key == "method.zero"        ? plan.exchange.sharding.zero
       : key == "method.pp"          ? plan.mesh.pp
       : key == "method.dp"          ? plan.mesh.dp
       : key == "method.tp"          ? plan.mesh.tp
       : key == "train.global_batch" ? plan.schedule.global_batch
                                     : throw std::invalid_argument(change)) = std::stoi(value);
  }
  return plan;
}

/// If the method's name states the ZeRO level, the remedy changes the name; and the key, which the
/// job may state too.
TEST(Fit, StatesAreShardedFurtherUnderTheMethodOfThatLevel) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = test::plan_of("zero1", 1, 4, 1, 1);
  plan.schedule.global_batch = 4;  // one sample per replica: only states can become smaller
  plan.schedule.recompute = true;
  plan::Plan whole = plan;
  whole.method = "zero3";
  const std::int64_t need = need_of(whole, model);
  ASSERT_LT(need, need_of(plan, model));
  const auto remedy = find_remedy({plan, {}}, model, with_memory(4, need));
  ASSERT_TRUE(remedy);
  EXPECT_THAT(remedy->changes, ElementsAre("method.name=zero3", "method.zero=3"));
  EXPECT_EQ(need_of(applied(plan, *remedy), model), need);
  const auto kept = find_remedy({plan, {}}, model, with_memory(4, need), true);
  EXPECT_EQ(kept ? applied(plan, *kept).method : "zero1", "zero1");
}

plan::Plan start() {
  plan::Plan plan = test::plan_of("ddp", 1, 4, 1, 1);
  plan.schedule.global_batch = 4 * 4;
  return plan;
}

TEST(Fit, TheFullestDeviceOfAKindCounts) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = test::plan_of("1f1b", 2, 1, 1, 4);
  const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
  const std::int64_t a = linked.memory[0].total(), b = linked.memory[1].total();
  ASSERT_NE(a, b);
  const cluster::Cluster cluster = with_memory(2, a + b);
  const auto apart = device_needs(linked, cluster, {});
  ASSERT_EQ(apart.size(), 1U);
  EXPECT_EQ(apart[0].need, std::max(a, b));
  EXPECT_EQ(apart[0].rank, a > b ? 0U : 1U);
  EXPECT_EQ(apart[0].capacity, a + b);
  // Ranks on the same device add up.
  const std::vector<Id> together = {1, 1};
  const auto needs = device_needs(linked, cluster, together);
  EXPECT_EQ(needs[0].need, a + b);
  EXPECT_EQ(needs[0].device, 1U);
  EXPECT_TRUE(needs[0].fits());
}

TEST(Fit, WhatFitsIsLeftAlone) {
  const model::ModelSpec model = test::small_model(4);
  const link::LinkedProgram linked = link::link(methods::compile(start(), model), model);
  const std::int64_t need = linked.memory[0].total();
  EXPECT_NO_THROW(check_memory(linked, start(), model, with_memory(4, need)));
  EXPECT_THROW(check_memory(linked, start(), model, with_memory(4, need - 1)), InputError);
}

TEST(Fit, RemediesAreTrueAndTheFirstThatFits) {
  const model::ModelSpec model = test::small_model(4);
  const plan::Plan plan = start();
  const std::int64_t whole = need_of(plan, model);
  plan::Plan two = plan, four = plan, again = plan;
  two.schedule.micro_batches = 2, four.schedule.micro_batches = 4, again.schedule.recompute = true;
  const std::int64_t halves = need_of(two, model), quarters = need_of(four, model),
                     recomputed = need_of(again, model);
  ASSERT_GT(whole, halves);
  ASSERT_GT(halves, quarters);
  std::set<std::string> seen;
  for (int percent = 99; percent >= 5; percent -= 2) {
    const std::int64_t capacity = whole * percent / 100;
    const auto remedy = find_remedy({plan, {}}, model, with_memory(4, capacity));
    if (!remedy) continue;
    SCOPED_TRACE(remedy->changes[0] + " at " + std::to_string(percent) + "%");
    EXPECT_EQ(need_of(applied(plan, *remedy), model), remedy->need);
    EXPECT_LE(remedy->need, capacity);
    std::string changes;
    for (const std::string& change : remedy->changes) changes += change + " ";
    seen.insert(changes);
    if (halves <= capacity) {
      EXPECT_THAT(remedy->changes, ElementsAre("method.micro_batches=2"));
    } else if (quarters <= capacity) {
      EXPECT_THAT(remedy->changes, ElementsAre("method.micro_batches=4"));
    } else if (recomputed <= capacity) {
      EXPECT_THAT(remedy->changes, ElementsAre("method.recompute=true"));
    } else {
      EXPECT_GT(remedy->changes.size() + (remedy->changes[0].find("zero") != std::string::npos),
                1U);
    }
  }
  EXPECT_GE(seen.size(), 4U) << "the capacities tried show too little";
}

cluster::Cluster with_host(std::int64_t device, std::int64_t host) {
  cluster::Cluster c = with_memory(4, device);
  c.set_host(0, {.memory = Bytes(static_cast<double>(host)),
                 .link = BytesPerSecond(1e9),
                 .bandwidth = BytesPerSecond(1e11)});
  return c;
}

// Where no change is enough alone, several are; none of them can be left out.
TEST(Fit, SeveralChangesAreAsFewAsPossible) {
  const model::ModelSpec model = test::small_model(4);
  const plan::Plan plan = start();
  plan::Plan least = plan;
  least.method = "zero3", least.exchange.sharding.zero = 3, least.schedule.micro_batches = 4;
  least.exchange.offload = plan::Offload::optimizer;
  plan::Plan recomputed = least;
  recomputed.schedule.recompute = true;
  const std::int64_t most = need_of(recomputed, model);
  ASSERT_LT(most, need_of(least, model));
  const auto remedy = find_remedy({plan, {}}, model, with_host(most, 1 << 30));
  ASSERT_TRUE(remedy);
  EXPECT_THAT(remedy->changes,
              testing::UnorderedElementsAre("method.recompute=true", "method.zero=3",
                                            "method.micro_batches=4", "method.offload=optimizer"));
  EXPECT_EQ(need_of(applied(plan, *remedy), model), most);
  // With a little more memory, recomputation is not needed.
  const auto fewer = find_remedy({plan, {}}, model, with_host(need_of(least, model), 1 << 30));
  ASSERT_TRUE(fewer);
  EXPECT_THAT(fewer->changes, testing::Not(testing::Contains("method.recompute=true")));
}

// A host without the memory is no place for the optimizer.
TEST(Fit, TheHostMustHaveWhatIsAdvised) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = start(), offloaded = plan;
  offloaded.exchange.offload = plan::Offload::optimizer;
  offloaded.method = "zero3", offloaded.exchange.sharding.zero = 3,
  offloaded.schedule.micro_batches = 4;
  offloaded.schedule.recompute = true;
  const link::LinkedProgram linked = link::link(methods::compile(offloaded, model), model);
  const std::int64_t device = need_of(offloaded, model), host = 4 * linked.memory[0].host;
  ASSERT_TRUE(find_remedy({plan, {}}, model, with_host(device, host)));
  const auto without = find_remedy({plan, {}}, model, with_host(device, host - 1));
  ASSERT_TRUE(without);
  EXPECT_EQ(without->changes,
            (std::vector<std::string>{"method.pp=1", "method.dp=1", "method.tp=4",
                                      "method.micro_batches=16", "method.recompute=true"}));
  // A job that states it is told what would fit without it, or that nothing was found.
  const auto said = [&](std::int64_t memory) {
    return test::message_of(
        [&] { check_memory(linked, offloaded, model, with_host(memory, host - 1)); });
  };
  EXPECT_THAT(said(std::int64_t{1} << 32), HasSubstr("this would fit, with"));
  EXPECT_THAT(said(std::int64_t{1} << 32), HasSubstr("--set method.offload=none"));
  EXPECT_THAT(
      said(device),
      testing::EndsWith("its ranks need 458 kB for the optimizer; this would fit, with 120 kB: "
                        "--set method.offload=none --set method.pp=1 --set method.dp=1 "
                        "--set method.tp=4 --set method.micro_batches=16"));
}

// Ranks that share the host's cores have its memory too: their values and the optimizer's state
// together must fit.
TEST(Fit, AHostHoldsWhatItsOwnRanksCompute) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = start();
  plan.exchange.offload = plan::Offload::optimizer;
  plan.method = "zero3", plan.exchange.sharding.zero = 3;
  const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
  const std::int64_t host = 4 * linked.memory[0].host, values = 4 * linked.memory[0].total();
  ASSERT_GT(values, 0);
  cluster::Cluster alone = with_host(std::int64_t{1} << 32, host);
  EXPECT_FALSE(short_host(linked, alone, plan));
  cluster::Cluster shared = with_host(std::int64_t{1} << 32, host + values);
  shared.share_cores(4);
  EXPECT_FALSE(short_host(linked, shared, plan));
  shared = with_host(std::int64_t{1} << 32, host + values - 1);
  shared.share_cores(4);
  const auto found = short_host(linked, shared, plan);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->need, host + values);
}

TEST(Fit, SaysWhatIsTooLargeAndWhatWouldHelp) {
  const model::ModelSpec model = test::small_model(4);
  const link::LinkedProgram linked = link::link(methods::compile(start(), model), model);
  const auto message = [&](std::int64_t capacity) {
    return test::message_of(
        [&] { check_memory(linked, start(), model, with_memory(4, capacity)); });
  };
  const std::string said = message(linked.memory[0].total() - 1);
  EXPECT_THAT(said, HasSubstr("memory: gpu0 (unit, "));
  EXPECT_THAT(said, HasSubstr("method \"ddp\""));
  EXPECT_THAT(said, HasSubstr(parts_text(linked.memory[0].parts)));
  EXPECT_THAT(said, HasSubstr("this would fit"));
  EXPECT_THAT(said, HasSubstr("--set method.micro_batches=2"));
  EXPECT_THAT(message(1000), HasSubstr("no number of micro-batches, recomputation, sharding of "
                                       "states, optimizer or activations on the host, other mesh "
                                       "of these devices or smaller batch"));
}

TEST(Fit, WhatIsReservedFitsNothing) {
  const model::ModelSpec model = test::small_model(4);
  const link::LinkedProgram linked = link::link(methods::compile(start(), model), model);
  const std::int64_t need = linked.memory[0].total();
  cluster::Cluster cluster = with_memory(4, need + 1000);
  EXPECT_NO_THROW(check_memory(linked, start(), model, cluster));
  cluster.reserve_memory(Bytes(1000));
  EXPECT_NO_THROW(check_memory(linked, start(), model, cluster));
  cluster.reserve_memory(Bytes(1001));
  EXPECT_THAT(test::message_of([&] { check_memory(linked, start(), model, cluster); }),
              HasSubstr(" less 1 kB reserve) needs "));
  cluster.reserve_memory(Bytes(1e12));
  EXPECT_EQ(device_needs(linked, cluster, {})[0].usable(), 0);
}

/// Counts the programs that are compiled for data-parallel methods and Megatron.
struct CountedCompiles {
  static inline int count = 0;
  static inline methods::LoweredProgram (*lower)(const plan::Plan&,
                                                 const model::ModelSpec&) = nullptr;
  std::vector<std::string> methods = {"ddp", "zero1", "zero2", "zero3", "megatron"};
  std::map<std::string, methods::Strategy> before = methods::strategies();
  CountedCompiles() {
    count = 0;
    lower = methods::strategies().at("ddp").lower;
    for (const std::string& method : methods)
      methods::strategies().at(method).lower = [](const plan::Plan& plan,
                                                  const model::ModelSpec& model) {
        ++count;
        return lower(plan, model);
      };
  }
  ~CountedCompiles() { methods::strategies() = before; }
};

TEST(Fit, ARefusalCompilesFewPrograms) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = test::plan_of("ddp", 1, 4, 1, 1);
  plan.schedule.global_batch = 4;
  const std::int64_t one = need_of(plan, model);  // with one sample per rank
  const cluster::Cluster cluster = with_memory(4, one + one / 2);
  // A number with very many divisors, so that there are very many numbers of micro-batches to try.
  plan.schedule.global_batch = 4 * 367567200;
  const CountedCompiles compiles;
  const auto remedy = find_remedy({plan, {}}, model, cluster);
  EXPECT_LE(CountedCompiles::count, most_remedies);
  ASSERT_TRUE(remedy) << "a smaller batch fits";
  EXPECT_THAT(remedy->changes.back(), testing::StartsWith("train.global_batch="));
  EXPECT_EQ(need_of(applied(plan, *remedy), model), remedy->need);
  EXPECT_LE(remedy->need, one + one / 2);
  // Nothing fits. The memory bound shows this without compiling.
  CountedCompiles::count = 0;
  EXPECT_FALSE(find_remedy({plan, {}}, model, with_memory(4, 1000)));
  EXPECT_EQ(CountedCompiles::count, 0);
}

}  // namespace
}  // namespace rehearse::planner
