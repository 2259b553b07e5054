#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <tuple>
#include <utility>

#include "engine/base/names.h"
#include "engine/base/numbers/divisors.h"
#include "engine/base/refusal.h"
#include "engine/plan/stages.h"

namespace rehearse::plan {

std::vector<std::pair<std::string, int>> Mesh::axes() const {
  std::vector<std::pair<std::string, int>> out;
  std::istringstream in(order);
  for (std::string axis; std::getline(in, axis, ',');)
    out.emplace_back(axis, axis == "pp"   ? pp
                           : axis == "dp" ? dp
                           : axis == "cp" ? cp
                           : axis == "tp" ? tp
                                          : 0);
  return out;
}

namespace {

void check_order(const Plan& plan) {
  std::vector<std::string> axes;
  for (auto& [axis, size] : plan.mesh.axes()) axes.push_back(axis);
  std::sort(axes.begin(), axes.end());
  const bool three = axes == std::vector<std::string>{"dp", "pp", "tp"};
  if (axes == std::vector<std::string>{"cp", "dp", "pp", "tp"} || (three && plan.mesh.cp == 1))
    return;
  refuse("order", '"' + plan.mesh.order + '"',
         plan.mesh.cp > 1
             ? "must name pp, dp, cp and tp once each, outermost first, such as \"pp,dp,cp,tp\""
             : "must name pp, dp and tp once each, outermost first, such as \"pp,dp,tp\"");
}

void check_tensor_groups(const Plan& plan, const model::ModelSpec& model) {
  if (const std::string rule = split_rule(model, plan.mesh.tp); !rule.empty())
    refuse(
        "tp", std::to_string(plan.mesh.tp),
        fmt::format("{}; nearest: {}", rule, nearest_divisor(tensor_divisor(model), plan.mesh.tp)));
  if (plan.mesh.sequence_parallel && model.seq_len / plan.mesh.cp % plan.mesh.tp != 0)
    refuse("sequence_parallel", "true",
           fmt::format("tp {} must divide the {} {}", plan.mesh.tp,
                       plan.mesh.cp > 1 ? "tokens of a rank," : "sequence length",
                       model.seq_len / plan.mesh.cp));
}

/// Refuses a way of attending that does not fit the model.
void check_attention(const Plan& plan, const model::ModelSpec& model) {
  const std::string name = fmt::format("\"{}\"", name_of(plan.mesh.context));
  if (writes_scores(model))
    refuse("cp", std::to_string(plan.mesh.cp),
           "needs software with fused attention (software.kernels.attention, and for a model with "
           "attention_cap software.kernels.soft_caps), whose kernel gives the sum of a softmax "
           "that blocks share");
  if (plan.mesh.context == Context::zigzag && model.family == model::Family::bert)
    refuse("context", name,
           fmt::format("{} attends in both directions, so contiguous blocks are equal work "
                       "already; use \"ring\"",
                       model.name));
  if (plan.mesh.rings() && attention_span(model, 0) < model.seq_len)
    refuse("context", name,
           fmt::format("{} attends to the last {} tokens, and blocks that travel around a ring "
                       "have no window; use \"ulysses\"",
                       model.name, model.window));
  if (plan.mesh.context != Context::ulysses) return;
  const int heads = std::gcd(model.heads, model.kv_heads) / plan.mesh.tp;
  if (heads % plan.mesh.cp != 0)
    refuse("cp", std::to_string(plan.mesh.cp),
           fmt::format("must divide the {} {}heads that {} has on each of {} tp ranks, of which "
                       "ulysses gives each rank equally many; nearest: {}; or use \"ring\"",
                       heads, model.kv_heads < model.heads ? "key-value " : "", model.name,
                       plan.mesh.tp, nearest_divisor(heads, plan.mesh.cp)));
}

/// Checks what divides each sequence over ranks.
void check_context(const Plan& plan, const model::ModelSpec& model) {
  if (plan.mesh.cp == 1) return;
  const auto refuse_cp = [&](const std::string& why) {
    refuse("cp", std::to_string(plan.mesh.cp), why);
  };
  if (model.output_norm)
    refuse_cp(
        fmt::format("must be 1: {} has norms of what attention returns (output_norm), which "
                    "attention in parts does not have",
                    model.name));
  const int halves = plan.mesh.context == Context::zigzag ? 2 : 1;
  if (model.seq_len % (halves * plan.mesh.cp) != 0)
    refuse_cp(fmt::format("{}cp must divide the {} tokens of a sample (train.seq_len); nearest: {}",
                          halves == 2 ? "with zigzag, 2 x " : "", model.seq_len,
                          nearest_divisor(std::max(1, model.seq_len / halves), plan.mesh.cp)));
  check_attention(plan, model);
  if (plan.schedule.recompute && plan.schedule.recompute_unit == RecomputeUnit::layer)
    refuse("recompute_unit", "\"layer\"",
           "with cp above 1, attention is recomputed in parts of its own; must be \"segment\" or "
           "\"attention\"");
  for (const auto& [key, group] :
       {std::pair("shard_group", plan.exchange.sharding.shard_group),
        std::pair("reshard_group", plan.exchange.sharding.reshard_group)})
    if (group > 0)
      refuse(key, std::to_string(group),
             "does not combine with cp above 1: state is sharded over dp and cp together");
}

void check_batch(const Plan& plan) {
  const std::int64_t per = std::int64_t{plan.mesh.dp} * plan.schedule.micro_batches;
  if (!plan.schedule.shares.empty()) {
    const auto sum =
        std::accumulate(plan.schedule.shares.begin(), plan.schedule.shares.end(), std::int64_t{0});
    const std::string value = fmt::format("[{}]", fmt::join(plan.schedule.shares, ", "));
    if (static_cast<int>(plan.schedule.shares.size()) != plan.mesh.dp)
      refuse("shares", value,
             fmt::format("must have one number for each of the {} dp ranks", plan.mesh.dp));
    if (*std::min_element(plan.schedule.shares.begin(), plan.schedule.shares.end()) < 1)
      refuse("shares", value, "must be at least 1 each");
    if (plan.schedule.global_batch % plan.schedule.micro_batches != 0)
      refuse("shares", value,
             fmt::format("sums to {}, which must divide global_batch {}", sum,
                         plan.schedule.global_batch));
    if (sum != plan.schedule.global_batch / plan.schedule.micro_batches)
      refuse("shares", value,
             fmt::format("must sum to global_batch {} / micro_batches {}, not to {}",
                         plan.schedule.global_batch, plan.schedule.micro_batches, sum));
  } else if (plan.schedule.global_batch < 1 || plan.schedule.global_batch % per != 0) {
    throw Refused(
        {"train.global_batch",
         fmt::format(
             "train.global_batch: {}: must be a multiple of dp {} x micro_batches {} = {}; "
             "nearest: {}",
             plan.schedule.global_batch, plan.mesh.dp, plan.schedule.micro_batches, per,
             std::max<std::int64_t>(1, (plan.schedule.global_batch + per / 2) / per) * per)});
  }
}

/// Checks the groups of data-parallel ranks that share one copy of sharded state.
void check_groups(const Plan& plan) {
  const Exchange& x = plan.exchange;
  for (const auto& [key, group, least_zero] :
       {std::tuple("shard_group", x.sharding.shard_group, 1),
        std::tuple("reshard_group", x.sharding.reshard_group, 3)}) {
    if (group == 0) continue;
    if (x.sharding.zero < least_zero)
      refuse(key, std::to_string(group),
             fmt::format("needs ZeRO {}", least_zero == 1 ? "1, 2 or 3" : "3"));
    if (plan.mesh.dp == 1)
      refuse(key, std::to_string(group), "there is one data-parallel rank, and nothing is sharded");
    const int nearest = nearest_divisor(plan.mesh.dp, std::max(group, 2));
    if (group < 2 || plan.mesh.dp % group != 0)
      refuse(key, std::to_string(group),
             fmt::format("must be at least 2 and divide the {} data-parallel ranks; nearest: {}",
                         plan.mesh.dp, nearest < 2 ? plan.mesh.dp : nearest));
  }
  if (x.sharding.reduce_once && x.sharding.zero < 2)
    refuse("reduce_once", "true",
           fmt::format("needs ZeRO 2 or 3; with ZeRO {} gradients are reduced once a step already",
                       x.sharding.zero));
  if (x.sharding.prefetch != Sharding{}.prefetch && x.sharding.zero < 3)
    refuse("prefetch", std::to_string(x.sharding.prefetch),
           fmt::format("needs ZeRO 3; with ZeRO {} no weights are gathered for a pass",
                       x.sharding.zero));
  if (x.sharding.pending_buckets != Sharding{}.pending_buckets && !plan.shards_gradients() &&
      plan.keeps_gradients())
    refuse("pending_buckets", std::to_string(x.sharding.pending_buckets),
           "needs ZeRO 2 or 3 without reduce_once, or offload with one micro-batch; otherwise the "
           "gradients of all buckets stay until the update");
  if (x.sharding.shard_group > 0 && x.sharding.reshard_group > 0)
    refuse("reshard_group", std::to_string(x.sharding.reshard_group),
           "does not combine with shard_group, in which forward gathers inside a group already");
  if (x.sharding.reshard_group > 0 && x.sharding.keep_gathered)
    refuse("reshard_group", std::to_string(x.sharding.reshard_group),
           "does not combine with keep_gathered, after which backward gathers nothing");
}

/// Refuses a plan whose program would be too long to compile.
void check_passes(const Plan& plan, const model::ModelSpec& model) {
  const std::int64_t passes = passes_of(plan, model);
  if (passes > most_passes)
    refuse(
        "micro_batches", std::to_string(plan.schedule.micro_batches),
        fmt::format("{} segments take {} passes a step, and a program has at most {}; at most "
                    "{} micro-batches",
                    model.segments.size(), passes, most_passes,
                    std::max<std::int64_t>(1, most_passes * plan.schedule.micro_batches / passes)));
}

/// [segment]: whether it is of the first so many layers of its model chunk; 0: of all segments.
std::vector<bool> of_first_layers(const Plan& plan, const model::ModelSpec& model, int layers) {
  std::vector<bool> out(model.segments.size(), layers == 0);
  if (layers == 0) return out;
  for (const std::vector<Id>& chunk : plan.placement.stages) {
    int first = -1;
    for (const Id s : chunk) {
      const int layer = model.segments[s].layer;
      if (first < 0) first = layer;
      out[s] = layer >= 0 && layer < first + layers;
    }
  }
  return out;
}

}  // namespace

bool recomputes_all(const Plan& plan) {
  return plan.schedule.recompute && plan.schedule.recompute_layers == 0 &&
         plan.schedule.recompute_unit != RecomputeUnit::attention;
}

std::vector<bool> recomputed(const Plan& plan, const model::ModelSpec& model) {
  if (!plan.schedule.recompute) return std::vector<bool>(model.segments.size());
  std::vector<bool> out = of_first_layers(plan, model, plan.schedule.recompute_layers);
  if (plan.schedule.recompute_unit == RecomputeUnit::attention)
    for (Id s = 0; s < out.size(); ++s)
      out[s] = out[s] && model.segments[s].kind == model::SegmentKind::attention;
  return out;
}

std::vector<bool> hosted(const Plan& plan, const model::ModelSpec& model) {
  if (!plan.schedule.hosted.on) return std::vector<bool>(model.segments.size());
  return of_first_layers(plan, model, plan.schedule.hosted.layers);
}

double optimizer_bytes(const Plan& plan) {
  if (plan.exchange.offload != Offload::none) return 0;
  const int moments = plan.optimizer == Optimizer::adamw ? 2 : 1;
  return static_cast<double>(moments * size_of(plan.moment_type()) +
                             (plan.has_master() ? size_of(program::DType::f32) : 0));
}

std::int64_t passes_of(const Plan& plan, const model::ModelSpec& model) {
  return static_cast<std::int64_t>(model.segments.size()) * plan.schedule.micro_batches *
         (plan.schedule.recompute ? 3 : 2);
}

bool splits(const model::ModelSpec& model, int tp) { return tensor_divisor(model) % tp == 0; }

std::string split_rule(const model::ModelSpec& model, int tp) {
  if (model.output_norm && tp > 1)
    return fmt::format(
        "must be 1: {} has norms of what attention and feed-forward return "
        "(output_norm), which need the sum over tp before the residual",
        model.name);
  for (const auto& [size, what] : {std::pair{model.heads, "heads"},
                                   {model.kv_heads, "key-value heads"},
                                   {model.ffn, "columns of the feed-forward layers"},
                                   {model.padded_vocab, "rows of the padded vocabulary"},
                                   {model.outputs, "outputs of the head"}})
    if (size % tp != 0) return fmt::format("must divide the {} {} of {}", size, what, model.name);
  return "";
}

Plan complete(Plan plan, const model::ModelSpec& model) {
  auto at_least = [](const char* key, int value, int least) {
    if (value < least)
      refuse(key, std::to_string(value), fmt::format("must be at least {}", least));
  };
  at_least("pp", plan.mesh.pp, 1), at_least("dp", plan.mesh.dp, 1), at_least("tp", plan.mesh.tp, 1);
  at_least("cp", plan.mesh.cp, 1);
  at_least("micro_batches", plan.schedule.micro_batches, 1),
      at_least("virtual_stages", plan.schedule.virtual_stages, 1);
  at_least("servers", plan.mesh.servers, 0), at_least("staleness", plan.schedule.staleness, 0);
  // A wait has a lag of up to staleness + 1 steps, which must fit into eight bits.
  if (constexpr int most = decltype(program::After::lag)::most - 1; plan.schedule.staleness > most)
    refuse("staleness", std::to_string(plan.schedule.staleness),
           fmt::format("must be at most {}", most));
  // An index has sixteen bits, and a micro-batch may need one for forward and one for backward.
  if (constexpr int most = (decltype(program::Ref::index)::most + 1) / 2;
      plan.schedule.micro_batches > most)
    refuse("micro_batches", std::to_string(plan.schedule.micro_batches),
           fmt::format("must be at most {}", most));
  check_order(plan);
  if (plan.exchange.sharding.zero < 0 || plan.exchange.sharding.zero > 3)
    refuse("zero", std::to_string(plan.exchange.sharding.zero), "must be 0, 1, 2 or 3");
  if (plan.exchange.sparse.density <= 0 || plan.exchange.sparse.density > 1)
    refuse("density", fmt::format("{}", plan.exchange.sparse.density), "must be in (0, 1]");
  if (plan.exchange.sparse.coding == program::Coding::values &&
      plan.exchange.sparse.selector != program::Selector::random_k)
    refuse("coding", "values",
           fmt::format("selector \"{}\" must send which entries it chose; nearest: \"delta16\", or "
                       "selector = \"random_k\"",
                       name_of(plan.exchange.sparse.selector)));
  if (!plan.master_weights && plan.precision != program::DType::bf16)
    refuse("master_weights", "false",
           plan.precision == program::DType::f32
               ? "needs precision \"bf16\"; fp32 weights have no fp32 copy"
               : "needs precision \"bf16\"; fp16 has no bits for small changes of weights");
  if (!plan.master_weights && plan.exchange.offload != Offload::none)
    refuse("master_weights", "false",
           "does not combine with offload, in which the host updates an fp32 copy");
  check_tensor_groups(plan, model);
  check_context(plan, model);
  check_batch(plan);
  check_groups(plan);
  check_passes(plan, model);
  for (const auto& [key, layers] : {std::pair{"recompute_layers", plan.schedule.recompute_layers},
                                    {"offload_layers", plan.schedule.hosted.layers}})
    if (layers > model.layers)
      refuse(key, std::to_string(layers),
             fmt::format("{} has {} layers; at most {}, or 0: all", model.name, model.layers,
                         model.layers));
  const int chunks = plan.mesh.pp * plan.schedule.virtual_stages;
  if (plan.placement.stages.empty()) {
    // The embedding and the head can be chunks without layers.
    const int most = model.layers + (plan.placement.stage_layers.empty() ? 0 : 2);
    if (chunks > most && chunks > 1)
      refuse(plan.schedule.virtual_stages > 1 ? "virtual_stages" : "pp",
             std::to_string(plan.schedule.virtual_stages > 1 ? plan.schedule.virtual_stages
                                                             : plan.mesh.pp),
             fmt::format("{} model chunks need at least as many layers; {} has {}", chunks,
                         model.name, model.layers));
    plan.placement.stages = divided(plan, model, chunks);
  }
  Id next = 0;
  for (const auto& stage : plan.placement.stages) {
    if (stage.empty()) refuse("stages", "[]", "every stage needs at least one segment");
    for (Id s : stage)
      if (s != next++)
        refuse("stages", std::to_string(s), "stages hold consecutive segments, each once");
  }
  if (static_cast<int>(plan.placement.stages.size()) != chunks || next != model.segments.size())
    refuse("stages", std::to_string(plan.placement.stages.size()),
           fmt::format("{} chunks must hold all {} segments of {}", chunks, model.segments.size(),
                       model.name));
  if (plan.placement.rank_to_device.empty())
    for (int r = 0; r < plan.mesh.world_size(); ++r)
      plan.placement.rank_to_device.push_back(static_cast<Id>(r));
  return plan;
}

}  // namespace rehearse::plan
