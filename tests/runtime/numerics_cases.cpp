#include "tests/runtime/numerics_cases.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/methods/strategy.h"
#include "tests/methods.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {

bool serves_by_arrival(const program::Program& program) {
  return std::any_of(program.roles.begin(), program.roles.end(),
                     [](const program::Role& role) { return role.free_running; });
}

namespace {

/// Plans of a method: the smallest one, and one for each setting that the method combines with.
std::vector<NumericsCase> cases_of(const std::string& method) {
  const methods::Combines& can = methods::strategy_named(method).combines;
  const plan::Plan least = smallest_plan(method);
  const job::Job job = small_job(least, "", "");
  const bool by_arrival = serves_by_arrival(program_of(job));
  std::vector<NumericsCase> cases;
  const auto add = [&](const std::string& what, const auto& change) {
    plan::Plan plan = least;
    change(plan);
    cases.push_back({method + what, plan});
  };
  add("", [](plan::Plan&) {});
  if (can.sgd) add(" by sgd", [](plan::Plan& p) { p.optimizer = plan::Optimizer::sgd; });
  if (can.clip)
    add(" clipped, recomputing",
        [&](plan::Plan& p) { p.clip = true, p.schedule.recompute = can.recompute; });
  if (can.shares)
    add(" unequal shares", [](plan::Plan& p) {
      p.mesh.dp = p.schedule.micro_batches = 2, p.schedule.shares = {3, 1};
    });
  // A method whose name implies a ZeRO level allows no other level.
  for (int zero = 1; zero <= (job.plan.exchange.sharding.zero == 0 ? can.max_zero : 0); ++zero)
    add(" zero " + std::to_string(zero),
        [&](plan::Plan& p) { p.mesh.dp = 2, p.exchange.sharding.zero = zero; });
  if (can.pp && can.max_zero == 3)
    add(" zero 3, kept and reduced once, clipped", [](plan::Plan& p) {
      p.mesh.dp = 2, p.exchange.sharding.zero = 3, p.clip = true;
      p.exchange.sharding.keep_gathered = p.exchange.sharding.reduce_once = true;
    });
  if (can.offload) {
    add(" offloading", [](plan::Plan& p) { p.exchange.offload = plan::Offload::optimizer; });
    if (can.clip)
      add(" offloading, clipped, accumulating", [](plan::Plan& p) {
        p.exchange.offload = plan::Offload::optimizer;
        p.clip = true, p.schedule.micro_batches = 2;
      });
  }
  add(" activations on the host", [&](plan::Plan& p) {
    p.schedule.hosted = {.on = true, .ahead = 1};
    p.schedule.micro_batches = std::max(2, p.schedule.micro_batches);
  });
  if (can.interleave)
    add(" interleaved, uneven", [](plan::Plan& p) {
      p.mesh.pp = 2, p.schedule.virtual_stages = 2;
      p.placement.partition = plan::Partition::layers, p.placement.stage_layers = {0, 2, 0};
    });
  if (can.staleness) add(" staler", [](plan::Plan& p) { p.schedule.staleness = 2; });
  // With several servers, each gets a part of a gradient and may serve the workers in another
  // order, which a test cannot prescribe. The tests of Asynchronous cover this case.
  if (can.servers && !by_arrival) add(" two servers", [](plan::Plan& p) { p.mesh.servers = 2; });
  return cases;
}

}  // namespace

std::vector<NumericsCase> all_cases() {
  std::vector<NumericsCase> all = {
      // Larger meshes, several techniques at once.
      {"ddp of 4", {.method = "ddp", .mesh = {.dp = 4}, .schedule = {.micro_batches = 2}}},
      {"zero2 of 4, clipped",
       {.method = "zero2", .mesh = {.dp = 4}, .schedule = {.micro_batches = 2}, .clip = true}},
      {"zero3 of 4, kept",
       {.method = "zero3", .mesh = {.dp = 4}, .exchange = {.sharding = {.keep_gathered = true}}}},
      {"hsdp of 4, accumulating, clipped",
       {.method = "hsdp",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2},
        .exchange = {.sharding = {.shard_group = 2}},
        .clip = true}},
      {"zero2 of 4 in groups, accumulating",
       {.method = "zero2",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2},
        .exchange = {.sharding = {.shard_group = 2}}}},
      {"zero1 in groups, unequal shares, tensor parallel",
       {.method = "zero1",
        .mesh = {.dp = 4, .tp = 2},
        .schedule = {.shares = {1, 2, 1, 4}},
        .exchange = {.sharding = {.shard_group = 2}}}},
      {"zero3 of 4, resharding, accumulating",
       {.method = "zero3",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2, .recompute = true},
        .exchange = {.sharding = {.reshard_group = 2}}}},
      {"zero3 of 4, recomputing layers",
       {.method = "zero3",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2,
                     .recompute = true,
                     .recompute_unit = plan::RecomputeUnit::layer},
        .exchange = {.sharding = {.reshard_group = 2}}}},
      {"zero3, tensor and sequence parallel, recomputing layers",
       {.method = "zero3",
        .mesh = {.dp = 2, .tp = 2, .sequence_parallel = true},
        .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer},
        .clip = true}},
      {"megatron, sequence parallel, clipped",
       {.method = "megatron", .mesh = {.dp = 2, .tp = 2, .sequence_parallel = true}, .clip = true}},
      {"megatron, recomputing layers",
       {.method = "megatron",
        .mesh = {.dp = 2, .tp = 2},
        .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer},
        .optimizer = plan::Optimizer::sgd}},
      {"megatron, recomputing layers, sequence parallel, clipped",
       {.method = "megatron",
        .mesh = {.tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 2,
                     .recompute = true,
                     .recompute_unit = plan::RecomputeUnit::layer},
        .clip = true}},
      {"1f1b of 2, recomputing layers",
       {.method = "1f1b",
        .mesh = {.pp = 2},
        .schedule = {.micro_batches = 4,
                     .recompute = true,
                     .recompute_unit = plan::RecomputeUnit::layer}}},
      {"megatron, activations on the host, recomputing layers, sequence parallel",
       {.method = "megatron",
        .mesh = {.tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 2,
                     .recompute = true,
                     .recompute_unit = plan::RecomputeUnit::layer,
                     .hosted = {.on = true, .ahead = 1}}}},
      {"megatron of 8, activations of one layer on the host, zero 3, sequence parallel, clipped",
       {.method = "megatron",
        .mesh = {.pp = 2, .dp = 2, .tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 2, .hosted = {.on = true, .layers = 1}},
        .exchange = {.sharding = {.zero = 3}},
        .clip = true}},
      {"zero3 of 4, recomputing, activations and optimizer on the host",
       {.method = "zero3",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2, .recompute = true, .hosted = {.on = true, .ahead = 1}},
        .exchange = {.offload = plan::Offload::optimizer}}},
      {"pipedream, one micro-batch a step, activations on the host",
       {.method = "pipedream",
        .mesh = {.pp = 2},
        .schedule = {.micro_batches = 1, .hosted = {.on = true, .ahead = 1}}}},
      {"1f1b of 2, recomputing one layer",
       {.method = "1f1b",
        .mesh = {.pp = 2},
        .schedule = {.micro_batches = 4, .recompute = true, .recompute_layers = 1}}},
      {"megatron, recomputing attention, sequence parallel",
       {.method = "megatron",
        .mesh = {.tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 2,
                     .recompute = true,
                     .recompute_unit = plan::RecomputeUnit::attention}}},
      {"zero2, recomputing layers",
       {.method = "zero2",
        .mesh = {.dp = 2},
        .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer}}},
      {"megatron of 8, zero 3, sequence parallel, unequal shares, clipped",
       {.method = "megatron",
        .mesh = {.pp = 2, .dp = 2, .tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 2, .shares = {3, 1}},
        .exchange = {.sharding = {.zero = 3}},
        .clip = true}},
      {"1f1b of 4, clipped",
       {.method = "1f1b", .mesh = {.pp = 4}, .schedule = {.micro_batches = 4}, .clip = true}},
      {"zb-h2 of 4, clipped",
       {.method = "zb-h2", .mesh = {.pp = 4}, .schedule = {.micro_batches = 8}, .clip = true}},
      {"zb-h1 of 4, sequence parallel",
       {.method = "zb-h1",
        .mesh = {.pp = 2, .tp = 2, .sequence_parallel = true},
        .schedule = {.micro_batches = 4}}},
      {"zero2 of 3, unequal shares, clipped",
       {.method = "zero2",
        .mesh = {.dp = 3},
        .schedule = {.micro_batches = 2, .shares = {1, 2, 1}},
        .clip = true}},
      {"byteps, machines of 2, by priority",
       {.method = "byteps",
        .mesh = {.dp = 4, .servers = 2},
        .schedule = {.micro_batches = 2},
        .exchange = {.bucket = Bytes(20'000), .machines = {.credit = 2, .local_ranks = 2}}}},
      {"byteps, one machine",
       {.method = "byteps", .mesh = {.dp = 2}, .exchange = {.machines = {.local_ranks = 2}}}},
      {"byteps, mixed servers, clipped",
       {.method = "byteps",
        .mesh = {.dp = 2, .servers = 3},
        .exchange = {.bucket = Bytes(20'000),
                     .machines = {.local_ranks = 1,
                                  .server_placement = plan::ServerPlacement::mixed}},
        .clip = true}},
      {"pipedream, one micro-batch a step",
       {.method = "pipedream", .mesh = {.pp = 2}, .schedule = {.micro_batches = 1}}},
      {"pipedream, two micro-batches on four stages",
       {.method = "pipedream", .mesh = {.pp = 4}, .schedule = {.micro_batches = 2}}},
      {"topk-sync, nearly equal shares",
       {.method = "topk-sync", .mesh = {.dp = 2}, .schedule = {.shares = {3, 5}}}},
  };
  for (const std::string& method : test::all_methods())
    for (NumericsCase& one : cases_of(method)) all.push_back(std::move(one));
  return all;
}

std::vector<NumericsCase> with_llama(bool few) {
  const std::set<std::string> methods = {"ddp",
                                         "zero3",
                                         "1f1b",
                                         "zb-h1",
                                         "megatron",
                                         "topk-sync",
                                         "int8-sync",
                                         "ps-sync",
                                         "byteps",
                                         "pipedream-2bw",
                                         "pipedream",
                                         "pipedream, one micro-batch a step",
                                         "pipedream, two micro-batches on four stages"};
  std::vector<NumericsCase> cases;
  for (NumericsCase one : all_cases())
    if (methods.contains(one.name) == few) {
      one.name += " of llama", one.model = "llama-tiny";
      cases.push_back(std::move(one));
    }
  return cases;
}

namespace {

/// The cases of these names with another model.
std::vector<NumericsCase> cases_with(const std::string& model, const std::set<std::string>& names) {
  std::vector<NumericsCase> cases;
  for (NumericsCase one : all_cases())
    if (names.contains(one.name)) {
      one.name += " of " + model, one.model = model;
      cases.push_back(std::move(one));
    }
  return cases;
}

}  // namespace

std::vector<NumericsCase> with_gemma() {
  return cases_with("gemma2-tiny", {"ddp", "zero3", "1f1b", "zb-h1"});
}

std::vector<NumericsCase> with_experts() {
  return cases_with("moe-tiny",
                    {"ddp", "zero3", "zb-h1", "megatron",
                     "megatron, activations on the host, recomputing layers, sequence parallel",
                     "zero3 of 4, recomputing, activations and optimizer on the host",
                     "megatron of 8, zero 3, sequence parallel, unequal shares, clipped"});
}

}  // namespace rehearse::runtime
