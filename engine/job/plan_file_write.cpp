// Writes plan files: the plan with every key, then the reasons. Equal plans give equal bytes. The
// plan's hash is the FNV-1a of the text of [made_for], without its descriptions, and [plan].
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/job/plan_file.h"

namespace rehearse::job {
namespace {

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

/// A TOML list; more than 100 characters are broken into several lines.
std::string list(const std::vector<std::string>& items) {
  std::string line = fmt::format("[{}]", fmt::join(items, ", "));
  if (line.size() <= 100) return line;
  std::string out = "[";
  std::size_t column = 200;
  for (const std::string& item : items) {
    if (column + item.size() > 100) out += "\n ", column = 2;
    out += ' ' + item + ',', column += item.size() + 2;
  }
  return out + "\n]";
}

class Writer {
 public:
  void table(const std::string& name) { text_ += fmt::format("\n[{}]\n", name); }
  void tables(const std::string& name) { text_ += fmt::format("\n[[{}]]\n", name); }
  void raw(const char* key, const std::string& value) {
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void text(const char* key, const std::string& value) { raw(key, quote(value)); }
  void number(const char* key, double value) { raw(key, fmt::format("{}", value)); }
  /// Leaves an infinite time out.
  void seconds(const char* key, double value) {
    if (std::isfinite(value)) number(key, value);
  }
  void flag(const char* key, bool value) { raw(key, value ? "true" : "false"); }
  template <class E>
  void choice(const char* key, E value) {
    text(key, std::string(name_of(value)));
  }
  template <class E>
  void maybe(const char* key, const std::optional<E>& value) {
    text(key, value ? std::string(name_of(*value)) : "automatic");
  }
  template <class Range>
  void numbers(const char* key, const Range& values) {
    std::vector<std::string> items;
    for (const auto& value : values) items.push_back(fmt::format("{}", value));
    raw(key, list(items));
  }
  void texts(const char* key, const std::vector<std::string>& values) {
    std::vector<std::string> items;
    for (const std::string& value : values) items.push_back(quote(value));
    raw(key, list(items));
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

/// "FIRST .. LAST" for each stage: its segments are consecutive.
std::vector<std::string> stage_texts(const plan::Plan& plan, const model::ModelSpec& model) {
  std::vector<std::string> out;
  for (const auto& stage : plan.placement.stages)
    out.push_back(model.segments[stage.front()].name + " .. " + model.segments[stage.back()].name);
  return out;
}

void write_made_for(Writer& w, const MadeFor& made_for) {
  w.table("made_for");
  w.text("model", made_for.model);
  w.text("model_hash", hash_text(made_for.model_hash));
  w.text("cluster", made_for.cluster);
  w.text("cluster_hash", hash_text(made_for.cluster_hash));
  w.text("profile_hash", hash_text(made_for.profile_hash));
}

void write_plan(Writer& w, const plan::Plan& plan, const model::ModelSpec& model,
                const cluster::Cluster& cluster) {
  w.table("plan");
  w.text("method", plan.method);
  w.number("pp", plan.mesh.pp), w.number("dp", plan.mesh.dp), w.number("tp", plan.mesh.tp);
  if (plan.mesh.cp > 1)  // see recompute_unit
    w.number("cp", plan.mesh.cp), w.choice("context", plan.mesh.context);
  w.text("order", plan.mesh.order);
  w.number("servers", plan.mesh.servers);
  w.number("zero", plan.exchange.zero);
  w.flag("sequence_parallel", plan.mesh.sequence_parallel);
  w.number("global_batch", plan.schedule.global_batch);
  w.number("micro_batches", plan.schedule.micro_batches);
  w.numbers("shares", plan.schedule.shares);
  w.number("virtual_stages", plan.schedule.virtual_stages);
  w.number("staleness", plan.schedule.staleness);
  w.texts("stages", stage_texts(plan, model));
  w.number("bucket_bytes", plan.exchange.bucket_bytes());
  w.choice("precision", plan.precision);
  if (plan.fp8) w.flag("fp8", true);  // see recompute_unit
  w.flag("recompute", plan.schedule.recompute);
  // Not the default, so that the hashes of files of older versions stay.
  if (plan.schedule.recompute_unit != plan::RecomputeUnit::segment)
    w.choice("recompute_unit", plan.schedule.recompute_unit);
  if (plan.schedule.recompute_layers > 0)  // see recompute_unit
    w.number("recompute_layers", plan.schedule.recompute_layers);
  if (plan.checkpoints.every > 0) {  // see recompute_unit
    w.number("save_every", plan.checkpoints.every);
    w.choice("save_to", plan.checkpoints.to);
    if (plan.checkpoints.to == program::Medium::peers)
      w.number("save_group", plan.checkpoints.group);
  }
  w.flag("keep_gathered", plan.exchange.keep_gathered);
  if (plan.exchange.reduce_once) w.flag("reduce_once", true);  // see recompute_unit
  if (plan.exchange.prefetch != plan::Exchange{}.prefetch)     // see recompute_unit
    w.number("prefetch", plan.exchange.prefetch);
  if (plan.exchange.pending_buckets != plan::Exchange{}.pending_buckets)  // see recompute_unit
    w.number("pending_buckets", plan.exchange.pending_buckets);
  if (plan.exchange.shard_group > 0)  // see recompute_unit
    w.number("shard_group", plan.exchange.shard_group);
  if (plan.exchange.reshard_group > 0)  // see recompute_unit
    w.number("reshard_group", plan.exchange.reshard_group);
  if (plan.exchange.fp32_gradients) w.flag("fp32_gradients", true);  // see recompute_unit
  if (!plan.master_weights) w.flag("master_weights", false);         // see recompute_unit
  if (plan.bf16_moments) w.flag("bf16_moments", true);               // see recompute_unit
  if (plan.exchange.offload != plan::Offload::none)                  // see recompute_unit
    w.choice("offload", plan.exchange.offload);
  w.flag("clip", plan.clip);
  w.number("density", plan.exchange.density);
  w.number("s_min", plan.exchange.s_min), w.number("s_max", plan.exchange.s_max);
  w.choice("selector", plan.exchange.selector);
  w.choice("feedback", plan.exchange.feedback);
  w.maybe("reduction", plan.exchange.reduction), w.maybe("coding", plan.exchange.coding);
  w.number("observe", plan.exchange.observe);
  if (plan.exchange.bits) w.number("bits", *plan.exchange.bits);  // see recompute_unit
  if (plan.exchange.block) w.number("block", static_cast<double>(*plan.exchange.block));
  if (plan.exchange.error_feedback) w.flag("error_feedback", *plan.exchange.error_feedback);
  if (plan.exchange.rank) w.number("rank", *plan.exchange.rank);
  if (plan.exchange.warm_start) w.flag("warm_start", *plan.exchange.warm_start);
  if (plan.exchange.start) w.number("start", *plan.exchange.start);
  if (plan.exchange.freeze) w.number("freeze", *plan.exchange.freeze);
  if (plan.exchange.cycle_time) w.number("cycle_time", *plan.exchange.cycle_time);
  if (plan.exchange.response_cache) w.number("response_cache", *plan.exchange.response_cache);
  if (!plan.exchange.fused_after.empty()) w.numbers("fused_after", plan.exchange.fused_after);
  if (plan.exchange.credit) w.number("credit", *plan.exchange.credit);
  if (plan.exchange.local_ranks > 0) w.number("local_ranks", plan.exchange.local_ranks);
  if (plan.exchange.server_placement != plan::ServerPlacement::own)
    w.choice("server_placement", plan.exchange.server_placement);
  if (!plan.exchange.push_order.empty()) w.numbers("push_order", plan.exchange.push_order);
  const plan::Averaging& averaging = plan.exchange.averaging;  // see recompute_unit
  if (averaging.local_steps) w.number("local_steps", *averaging.local_steps);
  if (averaging.outer_lr) w.number("outer_lr", *averaging.outer_lr);
  if (averaging.outer_momentum) w.number("outer_momentum", *averaging.outer_momentum);
  if (averaging.graph) w.choice("graph", *averaging.graph);
  if (averaging.degree) w.number("degree", *averaging.degree);
  if (averaging.graph_seed) w.number("graph_seed", *averaging.graph_seed);
  w.choice("pipeline", plan.schedule.pipeline);
  w.numbers("node_of", plan.placement.node_of);
  w.choice("collective", plan.exchange.collective);
  w.choice("optimizer", plan.optimizer);
  std::vector<std::string> devices;
  for (Id device : plan.placement.rank_to_device) devices.push_back(cluster.devices()[device].name);
  w.texts("rank_to_device", devices);
  std::vector<std::string> layers;
  for (std::size_t s = 0; s < plan.exchange.layers.size(); ++s)
    layers.push_back(fmt::format("{{ segment = {}, density = {}, reduction = {}, coding = {} }}",
                                 quote(model.segments[s].name), plan.exchange.layers[s].density,
                                 quote(std::string(name_of(plan.exchange.layers[s].reduction))),
                                 quote(std::string(name_of(plan.exchange.layers[s].coding)))));
  if (!layers.empty()) w.raw("layers", fmt::format("[\n  {},\n]", fmt::join(layers, ",\n  ")));
}

void write_why(Writer& w, const plan::Decision& d) {
  w.table("why");
  w.seconds("seconds", d.seconds);
  w.seconds("dry_run_seconds", d.dry_run_seconds);
  w.number("candidates", d.candidates), w.number("pruned", d.pruned);
  w.number("dry_run", d.dry_run), w.number("beyond_budget", d.beyond_budget);
  w.texts("would_change", d.would_change);
  w.texts("warnings", d.warnings);
  for (const plan::Choice& choice : d.choices) {
    w.tables("why.choices");
    w.text("name", choice.name), w.text("value", choice.value);
    w.seconds("seconds", choice.seconds);
    for (const plan::Alternative& other : choice.runners_up) {
      w.tables("why.choices.runners_up");
      w.text("value", other.value);
      w.seconds("seconds", other.seconds);
      w.text("why", other.why);
    }
  }
  for (const plan::RunnerUp& other : d.runners_up) {
    w.tables("why.runners_up");
    w.text("value", other.value);
    w.seconds("seconds", other.seconds);
    w.text("why", other.why);
  }
  for (const plan::Infeasible& one : d.infeasible) {
    w.tables("why.infeasible");
    w.text("constraint", one.constraint);
    w.number("candidates", one.candidates);
    w.text("nearest", one.nearest);
  }
}

/// Throws ProgramError when the plan is not complete: stages must hold all segments in order,
/// layers must be empty or one for each segment, and devices must exist. Otherwise the file could
/// not be read.
void check(const plan::Plan& plan, const model::ModelSpec& model, const cluster::Cluster& cluster) {
  std::size_t next = 0;
  bool good = plan.exchange.layers.empty() || plan.exchange.layers.size() == model.segments.size();
  for (const auto& stage : plan.placement.stages) {
    good = good && !stage.empty();
    for (Id segment : stage) good = good && segment == next++;
  }
  for (Id device : plan.placement.rank_to_device) good = good && device < cluster.devices().size();
  if (!good || next != model.segments.size())
    throw ProgramError("a plan that is not complete cannot be written to a file");
}

}  // namespace

MadeFor made_for(const model::ModelSpec& model, const cluster::Cluster& cluster,
                 const costs::Profile* profile) {
  return {.model = describe(model),
          .cluster = describe(cluster),
          .model_hash = hash_of(model),
          .cluster_hash = cluster.hash(),
          .profile_hash = profile == nullptr ? 0 : hash_of(*profile)};
}

std::uint64_t hash_of(const plan::Plan& plan, const MadeFor& made_for,
                      const model::ModelSpec& model, const cluster::Cluster& cluster) {
  check(plan, model, cluster);
  Writer w;
  MadeFor hashes = made_for;
  hashes.model.clear(), hashes.cluster.clear();  // descriptions do not count
  write_made_for(w, hashes);
  write_plan(w, plan, model, cluster);
  return fnv1a(w.str());
}

std::string to_toml(const plan::Decision& decision, const MadeFor& made_for,
                    const model::ModelSpec& model, const cluster::Cluster& cluster) {
  Writer w;
  w.number("version", PlanFile::version);
  w.text("hash", hash_text(hash_of(decision.plan, made_for, model, cluster)));
  write_made_for(w, made_for);
  write_plan(w, decision.plan, model, cluster);
  write_why(w, decision);
  return "# A plan for `[method] plan` of a job (docs/plans.md). It is not to be edited: what "
         "runs\n"
         "# is what was rehearsed. Change the job and plan again.\n" +
         w.str();
}

}  // namespace rehearse::job
