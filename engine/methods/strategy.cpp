#include "engine/methods/strategy.h"

#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/methods/lowering/stage.h"
#include "engine/methods/passes/passes.h"

namespace rehearse::methods {

std::map<std::string, Strategy>& strategies() {
  static std::map<std::string, Strategy> all;
  return all;
}

Register::Register(const char* name, Strategy strategy) {
  strategies().emplace(name, std::move(strategy));
}

const Strategy& strategy_named(const std::string& name) {
  const auto it = strategies().find(name);
  if (it != strategies().end()) return it->second;
  throw InputError("method.name: " + unknown_method(name));
}

std::string unknown_method(const std::string& name) {
  if (strategies().contains(name)) return "";
  std::vector<std::string> names;
  for (const auto& [known, strategy] : strategies()) names.push_back(known);
  const std::string near = nearest(name, names);
  return fmt::format("unknown method \"{}\"{}; known: {}", name,
                     near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near),
                     fmt::join(names, ", "));
}

std::string cannot_save_behind(const std::string& method) {
  if (strategy_named(method).combines.lockstep) return "";
  return fmt::format(
      "async does not combine with method \"{}\", whose workers count their own steps; use "
      "\"full\", \"sharded\" or \"peer\"",
      method);
}

bool planned(const std::string& method) {
  const auto it = strategies().find(method);
  return it != strategies().end() && it->second.planned;
}

namespace {

template <class F>
std::vector<std::string> methods_with(F can) {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : strategies())
    if (can(strategy.combines)) names.push_back(name);
  return names;
}

void check_combination(const plan::Plan& plan, const Combines& can) {
  auto refuse = [&](const char* key, const std::string& value, const std::string& allowed) {
    const std::string name = fmt::format("method.{}", key);
    throw Refused({name, fmt::format("{}: {} does not combine with method \"{}\": {}", name, value,
                                     plan.method, allowed)});
  };
  if (plan.mesh.pp > 1 && !can.pp)
    refuse("pp", std::to_string(plan.mesh.pp),
           fmt::format("pp must be 1; pipelines: {}",
                       fmt::join(methods_with([](const Combines& c) { return c.pp; }), ", ")));
  if (plan.mesh.tp > 1 && !can.tp) refuse("tp", std::to_string(plan.mesh.tp), "tp must be 1");
  if (plan.exchange.zero > can.max_zero)
    refuse("zero", std::to_string(plan.exchange.zero), fmt::format("at most {}", can.max_zero));
  if (plan.schedule.virtual_stages > 1 && !can.interleave)
    refuse(
        "virtual_stages", std::to_string(plan.schedule.virtual_stages),
        fmt::format("must be 1; more: {}",
                    fmt::join(methods_with([](const Combines& c) { return c.interleave; }), ", ")));
  if (plan.schedule.recompute && !can.recompute) refuse("recompute", "true", "must be false");
  if (plan.schedule.recompute && plan.schedule.recompute_unit == plan::RecomputeUnit::layer &&
      plan.exchange.zero == 3)
    refuse("recompute_unit", "layer",
           "ZeRO-3 gathers weights segment by segment; must be segment, or zero at most 2");
  if (plan.clip && !can.clip)
    throw Refused(
        {"train.clip",
         fmt::format("train.clip: does not combine with method \"{}\": gradients have no common "
                     "norm to clip by; leave it out",
                     plan.method)});
  if (plan.precision == program::DType::f16 && !can.low_precision)
    refuse("precision", std::string(name_of(plan.precision)),
           "fp16's loss scale needs a common norm; use fp32 or bf16");
  if (plan.mesh.servers > 0 && !can.servers)
    refuse("servers", std::to_string(plan.mesh.servers), "only parameter servers have them");
  if (!plan.schedule.shares.empty() && !can.shares)
    refuse("shares", fmt::format("[{}]", fmt::join(plan.schedule.shares, ", ")),
           "every rank takes equally many samples");
  if (plan.exchange.offload != plan::Offload::none && !can.offload)
    refuse("offload", std::string(name_of(plan.exchange.offload)), "must be none");
  for (const auto& [key, group] : {std::pair("shard_group", plan.exchange.shard_group),
                                   std::pair("reshard_group", plan.exchange.reshard_group)})
    if (group > 0 && can.sparse) refuse(key, std::to_string(group), "its packets go to all ranks");
  if (!plan.exchange.layers.empty() && !can.sparse)
    refuse("layers", fmt::format("of {} segments", plan.exchange.layers.size()),
           "its gradients are summed whole");
  if (!can.quantised) {
    const std::string others =
        fmt::format("its gradients are not quantised, as those of {} are",
                    fmt::join(methods_with([](const Combines& c) { return c.quantised; }), ", "));
    const plan::Exchange& x = plan.exchange;
    if (x.bits) refuse("bits", std::to_string(*x.bits), others);
    if (x.block) refuse("block", std::to_string(*x.block), others);
    if (x.error_feedback) refuse("error_feedback", *x.error_feedback ? "true" : "false", others);
  }
  if (plan.exchange.bucket_bytes() == 0 && !can.one_bucket)
    refuse("bucket", "0 B", "must be at least 1 B");
  if (!can.cycles) {
    const std::string others =
        fmt::format("it has no coordinator; {} has",
                    fmt::join(methods_with([](const Combines& c) { return c.cycles; }), ", "));
    const plan::Exchange& x = plan.exchange;
    if (x.cycle_time) refuse("cycle_time", to_text(Seconds(*x.cycle_time)), others);
    if (x.response_cache) refuse("response_cache", std::to_string(*x.response_cache), others);
  }
  if (plan.checkpoints.every > 0 && !can.lockstep)
    throw Refused({"checkpoint.kind", "checkpoint.kind: " + cannot_save_behind(plan.method)});
  if (plan.schedule.staleness > 0 && !can.staleness)
    refuse("staleness", std::to_string(plan.schedule.staleness), "must be 0");
}

}  // namespace

plan::Plan prepare(plan::Plan plan, const model::ModelSpec& model) {
  const Strategy& strategy = strategy_named(plan.method);
  if (strategy.defaults) strategy.defaults(plan);
  check_combination(plan, strategy.combines);
  plan = complete(std::move(plan), model);
  if (strategy.check) strategy.check(plan, model);
  return plan;
}

LoweredProgram lower_stages(const plan::Plan& prepared, const model::ModelSpec& model) {
  const Strategy& strategy = strategy_named(prepared.method);
  return lower(prepared, model, strategy.order(prepared, model), strategy.sync(prepared));
}

program::Program compile(const plan::Plan& plan, const model::ModelSpec& model) {
  const plan::Plan ready = prepare(plan, model);
  return infer_waits(
      save_states(strategy_named(ready.method).lower(ready, model), ready.checkpoints));
}

program::Program compile_with_all_waits(const plan::Plan& prepared, const model::ModelSpec& model) {
  return infer_all_waits(
      save_states(strategy_named(prepared.method).lower(prepared, model), prepared.checkpoints));
}

}  // namespace rehearse::methods
