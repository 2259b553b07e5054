// Every field of a plan, said once: its key in jobs and plan files, what it accepts, and who reads
// it. Jobs (job/job_keys.cpp), plan files (job/plan_file.cpp, plan_file_write.cpp), reports
// (study/planning/decision.cpp) and the checks of methods (methods/strategy.cpp) all visit them. A
// new member of a plan does not compile until it is listed here.
#pragma once
#include <limits>

#include "engine/base/files/config.h"
#include "engine/plan/plan.h"

namespace rehearse::plan {

/// Which jobs state a field, in which section. none: it follows from other keys, or job_keys.cpp
/// reads it, because its default does.
enum class Section : std::uint8_t { none, method, train };

/// The methods that read a field. The others refuse it (methods/strategy.cpp).
enum class Readers : std::uint8_t {
  all,
  sharding,  // plan::complete refuses these where nothing is sharded
  quantised,
  compressed,  // quantised, or of a low rank
  low_rank,
  freezing,
  cycles,
  machines,
  local_steps,
  deadlines,
  secure,
  outer,
  graph
};

/// On what a field has an effect. Where the plan has no such thing, methods::idle_fields names the
/// field.
enum class Affects : std::uint8_t {
  every_plan,
  tensor_ranks,     // tp > 1
  divided_samples,  // cp > 1
  recomputation,
  hosted_activations,
  gathered_weights,  // ZeRO 3
  packets,           // gradients of which only chosen entries are sent
  stated_density,    // packets whose density is not the planner's choice
  chosen_density
};

struct Rule {
  Limits limits = {};  // of a number, or of each number of a list
  /// Whether a plan file has the key. none: only where the value is not the default, so that plans
  /// of older versions keep their hash.
  std::optional<bool> stated = {};
  Section section = Section::none;
  Readers readers = Readers::all;
  bool automatic = false;  // files spell an absent choice "automatic"
  Affects affects = Affects::every_plan;
};

/// A list of devices, which files name. `Ids`: std::vector<Id>, const or not.
template <class Ids>
struct Devices {
  Ids& ids;
};
template <class Ids>
Devices(Ids&) -> Devices<Ids>;

inline constexpr Limits natural = between(0, std::numeric_limits<int>::max());
inline constexpr Limits positive = between(1, std::numeric_limits<int>::max());
inline constexpr Limits fraction = {.least = 0, .most = 1, .open = true};

/// Calls `field(key, member, rule)` for every field, in the order of plan files. `P`: Plan, const
/// or not.
template <class P, class Visitor>
void each_field(P& plan, Visitor&& field) {
  auto& [method, mesh, schedule, exchange, placement, precision, fp8, clip, optimizer,
         master_weights, bf16_moments, checkpoints] = plan;
  auto& [pp, dp, tp, order, servers, sequence_parallel, cp, context] = mesh;
  auto& [global_batch, micro_batches, shares, virtual_stages, staleness, pipeline, recompute,
         recompute_unit, recompute_layers, hosted] = schedule;
  auto& [offload_activations, offload_layers, offload_ahead] = hosted;
  auto& [sharding, offload, fp32_gradients, bucket, collective, observe, sparse, quantised,
         low_rank, fusion, machines, averaging] = exchange;
  auto& [zero, keep_gathered, reduce_once, prefetch, pending_buckets, shard_group, reshard_group] =
      sharding;
  auto& [density, s_min, s_max, variance, selector, feedback, reduction, coding, layers] = sparse;
  auto& [bits, block, error_feedback, freeze] = quantised;
  auto& [rank, warm_start, start] = low_rank;
  auto& [cycle_time, response_cache, fused_after] = fusion;
  auto& [credit, local_ranks, server_placement, push_order] = machines;
  auto& [local_steps, outer_lr, outer_momentum, graph, degree, graph_seed, deadline, secure_sum] =
      averaging;
  auto& [secure, neighbours, threshold, clipping_range, levels] = secure_sum;
  // `partition` and `stage_layers` say how to make `stages`, which plan files have.
  auto& [stages, partition, stage_layers, rank_to_device, node_of] = placement;
  auto& [save_every, save_to, save_group] = checkpoints;

  constexpr auto in_method = Section::method;
  constexpr int most_steps = 1 << 30;  // after which a method compresses: above any real training
  const auto of = [](Readers readers, Limits limits = {}) {
    return Rule{.limits = limits, .section = Section::method, .readers = readers};
  };
  field("method", method, Rule{.stated = true});
  field("pp", pp, Rule{.limits = positive, .stated = true});
  field("dp", dp, Rule{.limits = positive, .stated = true});
  field("tp", tp, Rule{.limits = positive, .stated = true});
  field("cp", cp, Rule{.limits = positive});
  field("context", context,
        Rule{.stated = cp > 1, .section = in_method, .affects = Affects::divided_samples});
  field("order", order, Rule{.stated = true});
  field("servers", servers, Rule{.limits = natural, .stated = true});
  field("zero", zero,
        Rule{.limits = between(0, 3),
             .stated = true,
             .section = in_method,
             .readers = Readers::sharding});
  field("sequence_parallel", sequence_parallel,
        Rule{.stated = true, .section = in_method, .affects = Affects::tensor_ranks});
  field("global_batch", global_batch, Rule{.limits = positive, .stated = true});
  field("micro_batches", micro_batches, Rule{.limits = positive, .stated = true});
  field("shares", shares, Rule{.limits = positive, .stated = true});
  field("virtual_stages", virtual_stages,
        Rule{.limits = between(1, 1024), .stated = true, .section = in_method});
  field("staleness", staleness, Rule{.limits = natural, .stated = true, .section = in_method});
  field("stages", stages, Rule{.stated = true});
  field("bucket", bucket, Rule{.limits = between(0, 1e15), .stated = true, .section = in_method});
  field("precision", precision, Rule{.stated = true});
  field("fp8", fp8, Rule{});
  field("recompute", recompute, Rule{.stated = true, .section = in_method});
  field("recompute_unit", recompute_unit,
        Rule{.section = in_method, .affects = Affects::recomputation});
  field("recompute_layers", recompute_layers,
        Rule{.limits = natural, .section = in_method, .affects = Affects::recomputation});
  field("offload_activations", offload_activations, Rule{.section = in_method});
  field("offload_layers", offload_layers,
        Rule{.limits = natural, .section = in_method, .affects = Affects::hosted_activations});
  field("offload_ahead", offload_ahead,
        Rule{.limits = between(1, 4096),
             .section = in_method,
             .affects = Affects::hosted_activations});
  field("save_every", save_every, Rule{.limits = natural});
  field("save_to", save_to, Rule{.stated = save_every > 0});
  field("save_group", save_group, Rule{.limits = positive});
  field("keep_gathered", keep_gathered,
        Rule{.stated = true,
             .section = in_method,
             .readers = Readers::sharding,
             .affects = Affects::gathered_weights});
  field("reduce_once", reduce_once, of(Readers::sharding));
  field("prefetch", prefetch, of(Readers::sharding, between(0, 4096)));
  field("pending_buckets", pending_buckets, of(Readers::sharding, between(1, 4096)));
  field("shard_group", shard_group, of(Readers::sharding, natural));
  field("reshard_group", reshard_group, of(Readers::sharding, natural));
  field("fp32_gradients", fp32_gradients, Rule{.section = in_method});
  field("master_weights", master_weights, Rule{.section = in_method});
  field("bf16_moments", bf16_moments, Rule{.section = in_method});
  field("offload", offload, Rule{.section = in_method});
  field("clip", clip, Rule{.stated = true});
  field("density", density,
        Rule{.limits = fraction,
             .stated = true,
             .section = in_method,
             .affects = Affects::stated_density});
  field("s_min", s_min,
        Rule{.limits = between(0, 1),
             .stated = true,
             .section = in_method,
             .affects = Affects::chosen_density});
  field("s_max", s_max,
        Rule{.limits = between(0, 1),
             .stated = true,
             .section = in_method,
             .affects = Affects::chosen_density});
  field("variance", variance, Rule{.section = in_method, .affects = Affects::chosen_density});
  field("selector", selector,
        Rule{.stated = true, .section = in_method, .affects = Affects::packets});
  field("feedback", feedback,
        Rule{.stated = true, .section = in_method, .affects = Affects::packets});
  field("reduction", reduction,
        Rule{.stated = true, .section = in_method, .automatic = true, .affects = Affects::packets});
  field("coding", coding,
        Rule{.stated = true, .section = in_method, .automatic = true, .affects = Affects::packets});
  field("observe", observe, Rule{.limits = natural, .stated = true});
  field("bits", bits, of(Readers::quantised, between(1, 8)));
  field("block", block, of(Readers::quantised, between(8, 1 << 24)));
  field("error_feedback", error_feedback, of(Readers::compressed));
  field("rank", rank, of(Readers::low_rank, between(1, 1024)));
  field("warm_start", warm_start, of(Readers::low_rank));
  field("start", start, of(Readers::low_rank, between(0, most_steps)));
  field("freeze", freeze, of(Readers::freezing, between(1, most_steps)));
  field("cycle_time", cycle_time, of(Readers::cycles, between(0, 1)));
  field("response_cache", response_cache, of(Readers::cycles, between(0, 1 << 20)));
  field("fused_after", fused_after, Rule{.limits = natural});
  field("credit", credit, of(Readers::machines, between(1, 1 << 20)));
  field("local_ranks", local_ranks, of(Readers::machines, between(1, 1 << 20)));
  field("server_placement", server_placement, of(Readers::machines));
  field("push_order", push_order, Rule{.limits = natural});
  field("local_steps", local_steps, of(Readers::local_steps, between(1, 1'000'000)));
  field("deadline", deadline, of(Readers::deadlines, above(0)));
  field("secure", secure, of(Readers::secure));
  field("neighbours", neighbours, of(Readers::secure, natural));
  field("threshold", threshold, of(Readers::secure, natural));
  field("clipping_range", clipping_range, of(Readers::secure, above(0)));
  field("levels", levels, of(Readers::secure, between(2, 1 << 30)));
  field("outer_lr", outer_lr, of(Readers::outer, above(0)));
  field("outer_momentum", outer_momentum, of(Readers::outer, between(0, 0.999)));
  field("graph", graph, of(Readers::graph));
  field("degree", degree, of(Readers::graph, between(1, 1 << 20)));
  field("graph_seed", graph_seed, of(Readers::graph, natural));
  field("pipeline", pipeline, Rule{.stated = true});
  field("node_of", node_of, Rule{.limits = natural, .stated = true});
  field("collective", collective, Rule{.stated = true, .section = in_method});
  field("optimizer", optimizer, Rule{.stated = true, .section = Section::train});
  field("rank_to_device", Devices{rank_to_device}, Rule{.stated = true});
  field("layers", layers, Rule{});
}

}  // namespace rehearse::plan
