// Tests migrations by interpreting the migration program on numbers. Each number identifies its
// tensor and element. The result is compared with the parts that a checkpoint says a rank of the
// new plan has. Sent bytes are compared with formulas worked out by hand.
#include "engine/migration/migration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/methods/lowering/stage/stage.h"
#include "engine/methods/passes/passes.h"
#include "engine/tensors/tensor_parts.h"
#include "tests/engine/migration/moved.h"
#include "tests/engine/rig.h"

namespace rehearse::migration {
namespace {

/// The sum of the residuals of all ranks of a plan, by tensor and element of the whole tensor.
/// Expects replicas of one copy to be equal.
std::map<std::string, std::vector<double>> owed(const Moved& m, bool old,
                                                const model::ModelSpec& model) {
  std::map<std::pair<std::string, int>, std::vector<double>> copies;
  const auto& parts = old ? m.old_parts : m.new_parts;
  for (Id rank = 0; rank < parts.size(); ++rank)
    for (const tensors::TensorPart& part : parts[rank]) {
      if (part.key.kind != tensors::StorageKind::residual) continue;
      for (const model::ParamGroup& group : model.groups)
        for (const model::TensorSpec& spec : group.tensors) {
          if (spec.name != part.key.tensor) continue;
          auto& whole = copies[{part.key.tensor, part.key.copy}];
          whole.resize(static_cast<std::size_t>(tensors::elements_of(spec)), -1);
          std::vector<double> values(
              m.memory[rank][storage_of(m, rank, old, part)].begin() + part.begin,
              m.memory[rank][storage_of(m, rank, old, part)].begin() + part.begin + part.key.end -
                  part.key.begin);
          copy_part(spec, group.split, part.key.tp_rank, part.key.tp_size, part.key.begin,
                    part.key.end, sizeof(double), reinterpret_cast<std::byte*>(whole.data()),
                    reinterpret_cast<std::byte*>(values.data()), tensors::Direction::to_whole);
        }
    }
  std::map<std::string, std::vector<double>> sums;
  for (const auto& [key, values] : copies) {
    auto& sum = sums[key.first];
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sums;
}

struct Named {
  std::string name;
  plan::Plan plan;
};
std::vector<Named> plans_on(int ranks, program::DType precision = program::DType::f32) {
  std::vector<Named> out = {
      {"ddp", {.method = "ddp", .mesh = {.dp = ranks}}},
      {"zero1", {.method = "zero1", .mesh = {.dp = ranks}}},
      {"zero3", {.method = "zero3", .mesh = {.dp = ranks}}},
      {"hsdp",
       {.method = "hsdp", .mesh = {.dp = ranks}, .exchange = {.sharding = {.shard_group = 2}}}},
      {"1f1b", {.method = "1f1b", .mesh = {.pp = ranks}, .schedule = {.micro_batches = ranks}}},
      {"tp", {.method = "megatron", .mesh = {.tp = ranks}}},
      {"pp2 tp2",
       {.method = "megatron",
        .mesh = {.pp = 2, .dp = ranks / 4, .tp = 2},
        .schedule = {.micro_batches = 2}}},
      {"tp2 zero2", {.method = "zero2", .mesh = {.dp = ranks / 2, .tp = 2}}},
      {"dp2 pp",
       {.method = "1f1b",
        .mesh = {.pp = ranks / 2, .dp = 2, .order = "dp,pp,tp"},
        .schedule = {.micro_batches = ranks / 2}}},
      {"2bw",
       {.method = "pipedream-2bw",
        .mesh = {.pp = 2, .dp = ranks / 2},
        .schedule = {.micro_batches = 2}}},
      {"offload",
       {.method = "ddp", .mesh = {.dp = ranks}, .exchange = {.offload = plan::Offload::optimizer}}},
      {"tp2 zero-offload",
       {.method = "zero-offload",
        .mesh = {.dp = ranks / 2, .tp = 2},
        .exchange = {.offload = plan::Offload::optimizer}}},
  };
  for (Named& one : out) {
    plan::Plan& plan = one.plan;
    plan.precision = precision;
    plan.schedule.global_batch = ranks * 4;
    plan.exchange.bucket = Bytes(20000);
  }
  return out;
}

TEST(Migration, BringsEveryPlanToEveryOther) {
  const model::ModelSpec model = test::small_model(8);
  for (const Named& from : plans_on(4))
    for (const Named& to : plans_on(4)) {
      SCOPED_TRACE(from.name + " -> " + to.name);
      // Packets of a few rows, so that every piece has to be split.
      const Moved m = moved(from.plan, to.plan, model, {.packet = Bytes(4000)});
      if (HasFailure()) return;
      expect_arrived(m, model);
      EXPECT_TRUE(m.linked.redundant.empty());
      EXPECT_EQ(to_text(program::parse_program(to_text(m.linked.program))),
                to_text(m.linked.program));
    }
}

TEST(Migration, ShardsOfPaddingAreNoState) {
  const model::ModelSpec model = test::small_model(4);
  const plan::Plan whole{.method = "ddp", .mesh = {.dp = 30}, .schedule = {.global_batch = 30}};
  for (const char* method : {"zero1", "zero3"}) {
    SCOPED_TRACE(method);
    plan::Plan sharded = whole;
    sharded.method = method;
    sharded.exchange.bucket = Bytes(1);  // a bucket for each segment
    const Moved m = moved(whole, sharded, model);
    if (HasFailure()) return;
    const auto moments = [&](Id rank) {
      std::set<Id> storages;
      for (const tensors::TensorPart& part : m.new_parts[rank])
        if (part.key.kind == tensors::StorageKind::moment1) storages.insert(part.storage);
      return storages.size();
    };
    EXPECT_LT(moments(29), moments(0)) << "no shard is nothing but padding";
    expect_arrived(m, model);
    expect_arrived(moved(sharded, whole, model), model);
  }
}

TEST(Migration, MovesSixteenBitsWithTheirMasters) {
  const model::ModelSpec model = test::small_model(4);
  const auto half = plans_on(4, program::DType::f16), full = plans_on(4);
  for (const std::size_t i : {0U, 1U, 2U, 4U}) {
    expect_arrived(moved(half[i].plan, half[5].plan, model), model);
    expect_arrived(moved(full[i].plan, half[5].plan, model), model);
    expect_arrived(moved(half[i].plan, full[5].plan, model), model);
  }
}

TEST(Migration, AddsEveryResidualExactlyOnce) {
  const model::ModelSpec model = test::small_model(4);
  const auto sparse = [](int dp, std::vector<int> shares) {
    plan::Plan plan{.method = "topk-sync",
                    .mesh = {.dp = dp},
                    .schedule = {.global_batch = 12},
                    .exchange = {.bucket = Bytes(20000)}};
    plan.schedule.shares = std::move(shares);
    return plan;
  };
  for (const Bytes bucket : {Bytes(20000), Bytes(1e9)}) {
    plan::Plan to = sparse(4, {5, 3, 3, 1});
    to.exchange.bucket = bucket;
    const Moved m = moved(sparse(4, {}), to, model);
    if (HasFailure()) return;
    expect_arrived(m, model);
    EXPECT_EQ(owed(m, true, model), owed(m, false, model));
    EXPECT_EQ(m.migration.sent_bytes, 0);  // each residual stays where it is
  }
  // The new plan has no place for the residuals.
  plan::Plan dense{.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 12}};
  EXPECT_THROW(moved(sparse(4, {}), dense, model), InputError);
  expect_arrived(moved(dense, sparse(4, {}), model), model);
}

TEST(Migration, MovesWhatASumOwesToTheNewOwnerOfItsPart) {
  const model::ModelSpec model = test::small_model(4);
  const auto plan = [](const char* method, double bucket, std::vector<int> shares = {}) {
    return plan::Plan{.method = method,
                      .mesh = {.dp = 4},
                      .schedule = {.global_batch = 12, .shares = std::move(shares)},
                      .exchange = {.bucket = Bytes(bucket)}};
  };
  const Moved m = moved(plan("int8-sync", 20000), plan("int8-sync", 1e9, {5, 3, 3, 1}), model);
  if (HasFailure()) return;
  expect_arrived(m, model);
  EXPECT_EQ(owed(m, true, model), owed(m, false, model));
  EXPECT_GT(m.migration.sent_bytes, 0);  // other buckets have other parts
  bool some = false;
  for (const tensors::TensorPart& part : m.new_parts[1])
    some |= part.key.kind == tensors::StorageKind::sum_residual;
  EXPECT_TRUE(some);
  // A sparse plan has residuals, but no place for what the sum owes.
  try {
    moved(plan("int8-sync", 1e9), plan("topk-sync", 1e9), model);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("or go on with a quantised one"), std::string::npos);
  }
  EXPECT_THROW(moved(plan("int8-sync", 1e9), plan("ddp", 1e9), model), InputError);
  EXPECT_NO_THROW(moved(plan("ddp", 1e9), plan("int8-sync", 1e9), model));
}

TEST(Migration, AddsResidualsUpWhereThereAreFewerReplicas) {
  model::ModelSpec model = test::small_model(4);
  model.tied = false;
  model.groups.clear(), model.segments.clear();
  model = build_model(model);
  const plan::Plan four = methods::prepare({.method = "topk-sync",
                                            .mesh = {.dp = 4},
                                            .schedule = {.global_batch = 8},
                                            .exchange = {.bucket = Bytes(20000)}},
                                           model);
  // A sparse exchange between the replicas of a pipeline and of tensor ranks.
  plan::Plan deep = four;
  deep.method = "1f1b";
  deep.mesh.pp = 2, deep.mesh.dp = 2, deep.schedule.micro_batches = 2,
  deep.placement.stages.clear();
  plan::Plan wide = four;
  wide.method = "megatron";
  wide.mesh.dp = 2, wide.mesh.tp = 2;
  const auto compiled = [&](const plan::Plan& plan, const methods::PassOrder& order) {
    return link::link(methods::infer_waits(
        lower(methods::prepare(plan, model), model, order, methods::sparse(plan))));
  };
  const link::LinkedProgram programs[] = {compiled(four, methods::one_by_one),
                                          compiled(deep, methods::one_forward_one_backward),
                                          compiled(wide, methods::one_by_one)};
  for (const link::LinkedProgram& from : programs)
    for (const link::LinkedProgram& to : programs) {
      SCOPED_TRACE(from.program.mesh[0].name + std::to_string(&from - programs) + " -> " +
                   std::to_string(&to - programs));
      const Moved m = moved(from, to, model, {.packet = Bytes(4000)});
      if (HasFailure()) return;
      expect_arrived(m, model);
      EXPECT_FALSE(owed(m, true, model).empty());
      EXPECT_EQ(owed(m, true, model), owed(m, false, model));
    }
}

std::int64_t sent(const link::LinkedProgram& linked) {
  std::int64_t bytes = 0;
  for (Id r = 0; r < linked.program.roles.size(); ++r)
    for (Id o = 0; o < linked.program.roles[r].ops.size(); ++o)
      if (std::holds_alternative<program::Send>(linked.program.roles[r].ops[o].work))
        bytes += linked.roles[r].ops[o].bytes;
  return bytes;
}

TEST(Migration, SendsWhatIsMissingAndNoMore) {
  const model::ModelSpec model = test::small_model(8);
  const std::int64_t p = parameters_of(model);
  const auto bytes = [&](const plan::Plan& from, const plan::Plan& to) {
    const Moved m = moved(from, to, model);
    EXPECT_EQ(sent(m.linked), m.migration.sent_bytes);
    return m.migration.sent_bytes;
  };
  const auto plan = [](const char* method, int pp, int dp, int tp) {
    plan::Plan out{.method = method,
                   .mesh = {.pp = pp, .dp = dp, .tp = tp},
                   .schedule = {.global_batch = 12, .micro_batches = pp}};
    out.exchange.bucket = Bytes(20000);
    return out;
  };
  // Nothing is sent when every rank already has the whole state, whatever the buckets are.
  EXPECT_EQ(bytes(plan("ddp", 1, 4, 1), plan("ddp", 1, 4, 1)), 0);
  EXPECT_EQ(bytes(plan("ddp", 1, 4, 1), plan("1f1b", 4, 1, 1)), 0);
  EXPECT_EQ(bytes(plan("ddp", 1, 4, 1), plan("megatron", 1, 2, 2)), 0);
  EXPECT_EQ(bytes(plan("ddp", 1, 4, 1), plan("zero3", 1, 4, 1)), 0);
  // ZeRO-1: each of n ranks has all weights and 1/n of AdamW's two moments: 2 P 4 (n-1) bytes.
  EXPECT_EQ(bytes(plan("zero1", 1, 4, 1), plan("ddp", 1, 4, 1)), 2 * p * 4 * 3);
  EXPECT_EQ(bytes(plan("zero2", 1, 3, 1), plan("ddp", 1, 3, 1)), 2 * p * 4 * 2);
  // ZeRO-3: each rank has only 1/n of the weights, too.
  EXPECT_EQ(bytes(plan("zero3", 1, 4, 1), plan("ddp", 1, 4, 1)), 3 * p * 4 * 3);
  // SGD has one moment.
  plan::Plan sgd = plan("zero1", 1, 4, 1), sgd_to = plan("ddp", 1, 4, 1);
  sgd.optimizer = sgd_to.optimizer = plan::Optimizer::sgd;
  EXPECT_EQ(bytes(sgd, sgd_to), p * 4 * 3);
  // From two stages of one rank each to whole copies: each rank lacks the parameters that only the
  // other one has, in three states (weight, two moments). Both have the tied embeddings.
  const plan::Plan pipeline = plan("1f1b", 2, 1, 1);
  std::int64_t both = 0;
  const std::int64_t embedding = elements_of(model.groups[model.segments[0].groups[0]], 1);
  for (const Id g : model.segments.back().groups)
    if (g == model.segments[0].groups[0]) both += embedding;
  EXPECT_GT(both, 0);
  EXPECT_EQ(bytes(pipeline, plan("ddp", 1, 2, 1)), 3 * 4 * (p - both));
  // From tp 2 to whole copies: each rank lacks half of each split tensor, in three states.
  std::int64_t split = 0;
  for (const model::ParamGroup& group : model.groups)
    if (group.split) split += elements_of(group, 1);
  EXPECT_EQ(bytes(plan("megatron", 1, 1, 2), plan("ddp", 1, 2, 1)), 3 * 4 * split);
}

TEST(Migration, PrefersTheNearAndSharesTheWork) {
  // Two nodes of two ranks, order dp,tp: tp rank 0 is on ranks 0 and 2, tp rank 1 on ranks 1 and 3.
  // Each node has both halves, so nothing needs to be sent between nodes.
  const model::ModelSpec model = test::small_model(4);
  plan::Plan from{
      .method = "megatron", .mesh = {.dp = 2, .tp = 2}, .schedule = {.global_batch = 8}};
  plan::Plan to{.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}};
  const auto across = [&](const MigrationOptions& options) {
    const Moved m = moved(from, to, model, options);
    std::int64_t bytes = 0;
    for (Id r = 0; r < 4; ++r)
      for (Id o = 0; o < m.linked.program.roles[r].ops.size(); ++o)
        if (const auto* send = std::get_if<program::Send>(&m.linked.program.roles[r].ops[o].work))
          if (send->peer / 2 != r / 2) bytes += m.linked.roles[r].ops[o].bytes;
    return bytes;
  };
  const auto distance = [](Id a, Id b) { return a / 2 == b / 2 ? 1.0 : 2.0; };
  EXPECT_EQ(across({.distance = distance}), 0);
  EXPECT_GT(across({.distance = [&](Id a, Id b) { return -distance(a, b); }}), 0);
  // All four ranks have every weight and a quarter of the moments: all of them send equally much.
  from = {.method = "zero1", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}};
  const Moved m = moved(from, to, model);
  std::vector<std::int64_t> given(4);
  for (Id r = 0; r < 4; ++r)
    for (Id o = 0; o < m.linked.program.roles[r].ops.size(); ++o)
      if (std::holds_alternative<program::Send>(m.linked.program.roles[r].ops[o].work))
        given[r] += m.linked.roles[r].ops[o].bytes;
  EXPECT_LT(static_cast<double>(*std::max_element(given.begin(), given.end())),
            1.1 * static_cast<double>(*std::min_element(given.begin(), given.end())));
}

TEST(Migration, LeavesProcessesOnTheirDevices) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan from{.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}};
  plan::Plan to{
      .method = "1f1b", .mesh = {.pp = 4}, .schedule = {.global_batch = 8, .micro_batches = 4}};
  const std::vector<Id> plays = players({10, 11, 12, 13}, {13, 11, 10, 12});
  EXPECT_EQ(plays, (std::vector<Id>{2, 1, 3, 0}));
  const Moved m = moved(from, to, model, {.plays = plays});
  expect_arrived(m, model, plays);
  EXPECT_EQ(m.migration.sent_bytes, 0);
  EXPECT_THROW(players({0, 1}, {0, 2}), InputError);
}

TEST(Migration, RefusesWhatCannotFollow) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan adam{.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}}, sgd = adam,
                                                                                        two = adam;
  sgd.optimizer = plan::Optimizer::sgd;
  two.mesh.dp = 2;
  EXPECT_THROW(moved(sgd, adam, model), InputError);
  EXPECT_THROW(moved(two, adam, model), InputError);
  const plan::Plan free{
      .method = "ps-async", .mesh = {.dp = 3, .servers = 1}, .schedule = {.global_batch = 9}};
  EXPECT_THROW(moved(adam, free, model), ProgramError);
  const plan::Plan served{
      .method = "ps-sync", .mesh = {.dp = 3, .servers = 1}, .schedule = {.global_batch = 9}};
  expect_arrived(moved(served, adam, model), model);
  expect_arrived(moved(adam, served, model), model);
}

TEST(Migration, TakesItsTimeInTheDryRun) {
  // Each rank receives three quarters of two moments over a link of 1 GB/s and waits for nothing
  // else.
  const model::ModelSpec model = test::small_model(8);
  const cluster::Cluster cluster = test::star(4, BytesPerSecond(1e9), Seconds(0));
  const Moved m =
      moved({.method = "zero1", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}},
            {.method = "ddp", .mesh = {.dp = 4}, .schedule = {.global_batch = 8}}, model);
  const costs::Costs costs(m.linked, model, cluster, {});
  execution::Recording recording;
  const execution::DryRun run = dry_run(m.linked, costs, cluster::Disturber({}, 4), 1, recording);
  const double wire = 2.0 * 4 * static_cast<double>(parameters_of(model)) * 3 / 4 / 1e9;
  EXPECT_GE(run.seconds, wire);
  EXPECT_LE(run.seconds, 1.2 * wire + 50e-6);
}

}  // namespace
}  // namespace rehearse::migration
