// Folding identical ranks changes no time; a draft link neither.
#include "engine/execution/dry_run/fold.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/methods/passes/passes.h"
#include "tests/engine/rig.h"

namespace rehearse::execution {
namespace {

/// The rank that each class stands for runs as in the unfolded run, op by op.
void expect_equal(const link::LinkedProgram& linked, const costs::Costs& costs,
                  std::size_t classes) {
  Recording all, folded;
  dry_run(linked, costs, cluster::Disturber({}, linked.program.world_size), 3, all);
  const Fold f = fold(linked, costs);
  const std::vector<double> step_ends = dry_run_folded(linked, costs, f, 3, &folded);
  std::vector<double> last(3, 0.0);
  for (const Interval& i : all.intervals) {
    double& end = last[static_cast<std::size_t>(i.step)];
    end = std::max(end, i.end);
  }
  EXPECT_EQ(step_ends, last);
  std::size_t found = 0;
  for (const auto& representative : f.representative) found += representative.size();
  EXPECT_EQ(found, classes);
  std::map<std::tuple<Id, Id, int, Id>, std::pair<double, double>> times;
  for (const Interval& i : folded.intervals)
    times[{i.role, i.op, i.step, i.place}] = {i.start, i.end};
  std::size_t compared = 0;
  for (const Interval& i : all.intervals) {
    const auto it = times.find({i.role, i.op, i.step, f.class_of[i.role][i.place]});
    ASSERT_NE(it, times.end());
    ASSERT_EQ(it->second.first, i.start);
    ASSERT_EQ(it->second.second, i.end);
    ++compared;
  }
  EXPECT_EQ(compared, all.intervals.size());
}

TEST(Fold, OneRankAStageWhereAllAreAlike) {
  for (const char* method : {"ddp", "zero3", "1f1b", "gpipe", "megatron", "pipedream-2bw"}) {
    SCOPED_TRACE(method);
    const bool deep = std::string(method) != "ddp" && std::string(method) != "zero3";
    const test::Rig rig(test::plan_of(method, deep ? 2 : 1, 4, 2, 4), test::small_model(4),
                        test::star(deep ? 16 : 8, BytesPerSecond(1e9), Seconds(1e-6)));
    expect_equal(rig.linked, rig.costs, deep ? 2 : 1);
  }
}

TEST(Fold, UnlikeDevicesAndLinksStayApart) {
  // On the paper's cluster the V100s and those who meet them differ from the rest.
  const model::ModelSpec model = model::load_model("bert-paper-110m", 0);
  for (const char* method : {"ddp", "1f1b", "megatron", "interleaved"}) {
    SCOPED_TRACE(method);
    plan::Plan plan{.method = method};
    plan.mesh.pp = std::string(method) == "ddp" ? 1 : 4;
    plan.mesh.tp = std::string(method) == "megatron" ? 2 : 1;
    plan.mesh.dp = 32 / plan.mesh.pp / plan.mesh.tp;
    plan.schedule.micro_batches = plan.mesh.pp;
    plan.schedule.global_batch = 512;
    const test::Rig rig(plan, model, cluster::load_cluster("paper"));
    const Fold f = fold(rig.linked, rig.costs);
    std::size_t classes = 0;
    for (const auto& representative : f.representative) classes += representative.size();
    EXPECT_LT(classes, 32u);
    EXPECT_GT(classes, rig.linked.program.roles.size());
    expect_equal(rig.linked, rig.costs, classes);
  }
}

TEST(Fold, TiedCopiesMeet) {
  const test::Rig rig(test::plan_of("1f1b", 2, 4, 1, 4), model::load_model("gpt-tiny", 0),
                      test::star(8, BytesPerSecond(1e8), Seconds(1e-5)));
  expect_equal(rig.linked, rig.costs, 2);
}

TEST(OrderedProgram, TakesTheTimeOfTheLinkedOne) {
  for (const auto& [name, strategy] : methods::strategies()) {
    plan::Plan plan =
        test::plan_of(name, strategy.combines.pp ? 2 : 1, 2, strategy.combines.tp ? 2 : 1, 4);
    SCOPED_TRACE(name);
    const model::ModelSpec model = test::small_model(4);
    const cluster::Cluster cluster = test::star(16, BytesPerSecond(1e9), Seconds(1e-6));
    const link::LinkedProgram whole = link::link(methods::compile(plan, model));
    if (needs_events(whole)) continue;
    const link::OrderedProgram quick =
        link::order(methods::compile_with_all_waits(methods::prepare(plan, model), model));
    const cluster::Disturber quiet({}, whole.program.world_size);
    Recording a, b;
    dry_run(whole, costs::Costs(whole, model, cluster, {}), quiet, 3, a);
    dry_run(quick, costs::Costs(quick, model, cluster, {}), quiet, 3, b);
    const auto key = [](const Interval& i) { return std::tuple(i.role, i.op, i.step, i.place); };
    for (Recording* r : {&a, &b})
      std::sort(r->intervals.begin(), r->intervals.end(),
                [&](const Interval& x, const Interval& y) { return key(x) < key(y); });
    EXPECT_EQ(a.intervals, b.intervals);
  }
}

TEST(Prices, RememberedOnesAreTheSame) {
  const model::ModelSpec model = model::load_model("bert-paper-110m", 0);
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  plan::Plan plan{
      .method = "megatron", .mesh = {.pp = 2, .dp = 8, .tp = 2}, .schedule = {.global_batch = 512}};
  plan.schedule.micro_batches = 4;
  costs::CollectivePrices prices(cluster);
  for (int again = 0; again < 2; ++again) {
    const link::LinkedProgram plain =
        link::link(methods::choose_collectives(methods::compile(plan, model), cluster, {}));
    const link::LinkedProgram priced =
        link::link(methods::choose_collectives(methods::compile(plan, model), cluster, {}, prices));
    EXPECT_EQ(hash_of(plain.program), hash_of(priced.program));
    const costs::Costs a(plain, model, cluster, {});
    const costs::Costs b(priced, model, cluster, {.prices = &prices});
    for (Id r = 0; r < plain.program.roles.size(); ++r)
      for (Id o = 0; o < plain.program.roles[r].ops.size(); ++o)
        for (Id i = 0; i < plain.program.roles[r].ranks.size(); ++i)
          ASSERT_EQ(a.seconds(r, o, i), b.seconds(r, o, i));
  }
}

}  // namespace
}  // namespace rehearse::execution
