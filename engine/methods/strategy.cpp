#include "engine/methods/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/terms.h"
#include "engine/methods/lowering/stage/stage.h"
#include "engine/methods/passes/passes.h"
#include "engine/plan/fields.h"

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
  const std::string note = term_note(name), near = nearest(name, names);
  return fmt::format("unknown method \"{}\"{}; known: {}", name,
                     !note.empty()  ? ": " + note
                     : near.empty() ? ""
                                    : fmt::format(", did you mean \"{}\"?", near),
                     fmt::join(names, ", "));
}

std::string remark_on(const plan::Plan& plan) {
  const Strategy& strategy = strategy_named(plan.method);
  return strategy.remark == nullptr ? "" : strategy.remark(plan);
}

std::string cannot_save_behind(const std::string& method) {
  const Combines& can = strategy_named(method).combines;
  if (can.lockstep) return "";
  return fmt::format(
      "async does not combine with method \"{}\", whose {}; use \"full\", \"sharded\" or \"peer\"",
      method,
      can.machines || can.local_steps ? "servers have no state to save"
                                      : "workers count their own steps");
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

/// Which methods read a field, and why the others refuse it.
struct ReadBy {
  bool (*reads)(const Combines&);
  const char* others;  // "{}": the methods that read it
};
ReadBy read_by(plan::Readers readers) {
  switch (readers) {
    case plan::Readers::all:
    case plan::Readers::sharding:
      break;
    case plan::Readers::quantised:
      return {[](const Combines& c) { return c.quantised; },
              "its gradients are not quantised, as those of {} are"};
    case plan::Readers::compressed:
      return {[](const Combines& c) { return c.quantised || c.low_rank; },
              "its gradients are not compressed, as those of {} are"};
    case plan::Readers::low_rank:
      return {[](const Combines& c) { return c.low_rank; },
              "its gradients are not sent as factors, as those of {} are"};
    case plan::Readers::freezing:
      return {[](const Combines& c) { return c.freezes; },
              "its second moments are never frozen, as those of {} are"};
    case plan::Readers::cycles:
      return {[](const Combines& c) { return c.cycles; }, "it has no coordinator; {} has"};
    case plan::Readers::machines:
      return {[](const Combines& c) { return c.machines; },
              "its servers do not sum over machines, as those of {} do"};
    case plan::Readers::local_steps:
      return {[](const Combines& c) { return c.local_steps; }, "only {} read it"};
    case plan::Readers::deadlines:
      return {[](const Combines& c) { return c.deadlines; },
              "its ranks wait for each other; {} drops late ones"};
    case plan::Readers::secure:
      return {[](const Combines& c) { return c.secure; },
              "no server sums its weights in secret, as that of {} can"};
    case plan::Readers::outer:
      return {[](const Combines& c) { return c.outer; }, "only {} read it"};
    case plan::Readers::graph:
      return {[](const Combines& c) { return c.graph; }, "only {} read it"};
  }
  return {[](const Combines&) { return true; }, ""};
}

template <class Dim>
std::string text_of(Quantity<Dim> value) {
  return to_text(value);
}
template <class Number>
  requires std::is_arithmetic_v<Number>
std::string text_of(Number value) {
  return fmt::format("{}", value);
}
template <class E>
  requires std::is_enum_v<E>
std::string text_of(E value) {
  return std::string(name_of(value));
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return text_of(*value);
}

[[noreturn]] void refuse_in(const plan::Plan& plan, const char* key, const std::string& value,
                            const std::string& allowed) {
  const std::string name = fmt::format("method.{}", key);
  throw Refused({name, fmt::format("{}: {} does not combine with method \"{}\": {}", name, value,
                                   plan.method, allowed)});
}

/// Calls `f(key, member, rule, usual)` for every field with another value than `usual`, that of a
/// plan that states nothing. `P`: Plan, const or not.
template <class P, class F>
void each_changed_field(P& plan, F&& f) {
  static const plan::Plan plain;
  static const std::vector<const void*> members_of_plain = [] {  // in the same order
    std::vector<const void*> members;
    plan::each_field(plain, [&](const char*, const auto& member, const plan::Rule&) {
      members.push_back(&member);
    });
    return members;
  }();
  std::size_t at = 0;
  plan::each_field(plan, [&](const char* key, auto&& member, const plan::Rule& rule) {
    const void* const same = members_of_plain[at++];
    if constexpr (requires { text_of(member); }) {
      const auto& usual = *static_cast<const std::decay_t<decltype(member)>*>(same);
      if (member != usual) f(key, member, rule, usual);
    }
  });
}

/// Refuses fields that the method does not read.
void check_readers(const plan::Plan& plan, const Combines& can) {
  each_changed_field(plan, [&](const char* key, const auto& member, const plan::Rule& rule, auto&) {
    if (rule.readers == plan::Readers::all) return;
    const ReadBy by = read_by(rule.readers);
    if (!by.reads(can))
      refuse_in(plan, key, text_of(member),
                fmt::format(fmt::runtime(by.others), fmt::join(methods_with(by.reads), ", ")));
  });
  if ((can.local_steps || can.graph) && plan.exchange.observe > 0)
    refuse("name", plan.method,
           "trains ranks apart: there is no gradient of a step whose variance could be observed; "
           "ddp has one");
}

/// Why a field has no effect in the plan; null: it has one.
const char* why_idle(plan::Affects affects, const plan::Plan& plan) {
  const Combines& can = strategy_named(plan.method).combines;
  const auto unless = [](bool has, const char* where) { return has ? nullptr : where; };
  switch (affects) {
    case plan::Affects::every_plan:
      return nullptr;
    case plan::Affects::tensor_ranks:
      return unless(plan.mesh.tp > 1, "tp is 1");
    case plan::Affects::divided_samples:
      return unless(plan.mesh.cp > 1, "cp is 1");
    case plan::Affects::recomputation:
      return unless(plan.schedule.recompute, "recompute is false");
    case plan::Affects::hosted_activations:
      return unless(plan.schedule.hosted.on, "offload_activations is false");
    case plan::Affects::gathered_weights:
      return unless(plan.exchange.sharding.zero == 3, "weights are not sharded (ZeRO 3)");
    case plan::Affects::packets:
      return unless(can.sparse, "gradients are sent whole");
    case plan::Affects::stated_density:
      return unless(can.sparse && !planned(plan.method),
                    can.sparse ? "s_min and s_max bound the density that is chosen"
                               : "gradients are sent whole");
    case plan::Affects::chosen_density:
      return unless(planned(plan.method), "no density is chosen");
  }
  return nullptr;
}

void check_combination(const plan::Plan& plan, const Combines& can) {
  const auto refuse = [&](const char* key, const std::string& value, const std::string& allowed) {
    refuse_in(plan, key, value, allowed);
  };
  if (plan.mesh.pp > 1 && !can.pp)
    refuse("pp", std::to_string(plan.mesh.pp),
           fmt::format("pp must be 1; pipelines: {}",
                       fmt::join(methods_with([](const Combines& c) { return c.pp; }), ", ")));
  if (plan.mesh.tp > 1 && !can.tp) refuse("tp", std::to_string(plan.mesh.tp), "tp must be 1");
  if (plan.mesh.cp > 1 && !can.context)
    refuse("cp", std::to_string(plan.mesh.cp),
           fmt::format("cp must be 1; context parallelism: {}",
                       fmt::join(methods_with([](const Combines& c) { return c.context; }), ", ")));
  if (plan.mesh.cp > 1 && !plan.schedule.shares.empty())
    refuse("cp", std::to_string(plan.mesh.cp),
           "ranks that divide a sequence take equally many samples; leave out shares");
  if (plan.exchange.sharding.zero > can.max_zero)
    refuse("zero", std::to_string(plan.exchange.sharding.zero),
           fmt::format("at most {}", can.max_zero));
  if (plan.schedule.virtual_stages > 1 && !can.interleave)
    refuse(
        "virtual_stages", std::to_string(plan.schedule.virtual_stages),
        fmt::format("must be 1; more: {}",
                    fmt::join(methods_with([](const Combines& c) { return c.interleave; }), ", ")));
  if (plan.schedule.recompute && !can.recompute) refuse("recompute", "true", "must be false");
  if (plan.clip && !can.clip)
    throw Refused(
        {"train.clip",
         fmt::format("train.clip: does not combine with method \"{}\": gradients have no common "
                     "norm to clip by; leave it out",
                     plan.method)});
  if (plan.optimizer != plan::Optimizer::adamw && !can.sgd)
    throw Refused({"train.optimizer",
                   fmt::format("train.optimizer: \"{}\" does not combine with method \"{}\", which "
                               "is a kind of Adam; must be \"adamw\"",
                               name_of(plan.optimizer), plan.method)});
  if (plan.precision == program::DType::f16 && !can.low_precision)
    refuse("precision", std::string(name_of(plan.precision)),
           "fp16's loss scale needs a common norm; use fp32 or bf16");
  if (!plan.master_weights && (can.local_steps || can.graph))
    refuse("master_weights", "false", "ranks average their weights in fp32; must be true");
  if (plan.bf16_moments && can.freezes)
    refuse("bf16_moments", "true", "it sends momenta, which are kept in fp32; must be false");
  if (plan.mesh.servers > 0 && !can.servers)
    refuse("servers", std::to_string(plan.mesh.servers), "only parameter servers have them");
  if (!plan.schedule.shares.empty() && !can.shares)
    refuse("shares", fmt::format("[{}]", fmt::join(plan.schedule.shares, ", ")),
           "every rank takes equally many samples");
  if (plan.exchange.offload != plan::Offload::none && !can.offload)
    refuse("offload", std::string(name_of(plan.exchange.offload)), "must be none");
  for (const auto& [key, group] :
       {std::pair("shard_group", plan.exchange.sharding.shard_group),
        std::pair("reshard_group", plan.exchange.sharding.reshard_group)})
    if (group > 0 && can.sparse) refuse(key, std::to_string(group), "its packets go to all ranks");
  if (!plan.exchange.sparse.layers.empty() && !can.sparse)
    refuse("layers", fmt::format("of {} segments", plan.exchange.sparse.layers.size()),
           "its gradients are summed whole");
  if (plan.exchange.bucket_bytes() == 0 && !can.one_bucket)
    refuse("bucket", "0 B", "must be at least 1 B");
  check_readers(plan, can);
  if (plan.checkpoints.every > 0 && !can.lockstep)
    throw Refused({"checkpoint.kind", "checkpoint.kind: " + cannot_save_behind(plan.method)});
  if (plan.schedule.staleness > 0 && !can.staleness)
    refuse("staleness", std::to_string(plan.schedule.staleness), "must be 0");
}

}  // namespace

std::vector<std::string> idle_fields(const plan::Plan& plan) {
  std::vector<std::string> out;
  const bool stated_whole = plan.exchange.sparse.reduction == plan::Reduction::dense;
  each_changed_field(plan, [&](const char* key, const auto& member, const plan::Rule& rule, auto&) {
    // The plan of an adaptive job sends gradients whole because the job says so.
    if (stated_whole && key == std::string_view("reduction")) return;
    if (const char* where = why_idle(rule.affects, plan))
      out.push_back(
          fmt::format("method.{}: {} has no effect where {}", key, text_of(member), where));
  });
  if (plan.exchange.bucket && strategy_named(plan.method).sync(plan).bucket_per_server())
    out.push_back(
        fmt::format("method.bucket: {} has no effect where each server has one bucket of its own",
                    to_text(*plan.exchange.bucket)));
  if (plan.placement.partition != plan::Partition{} &&
      plan.mesh.pp * plan.schedule.virtual_stages == 1)
    out.push_back(fmt::format("method.partition: {} has no effect where pp is 1",
                              name_of(plan.placement.partition)));
  return out;
}

std::vector<std::string> drop_own_fields(plan::Plan& plan) {
  std::vector<std::string> out;
  if (std::exchange(plan.mesh.servers, 0) > 0) out.emplace_back("servers");
  each_changed_field(
      plan, [&](const char* key, auto& member, const plan::Rule& rule, const auto& usual) {
        if (rule.readers == plan::Readers::all || rule.readers == plan::Readers::sharding) return;
        member = usual;
        out.emplace_back(key);
      });
  return out;
}

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
