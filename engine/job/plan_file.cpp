// Reads plan files. The file must state every key of the plan: a default would change the plan's
// meaning if a later version changed that default.
#include "engine/job/plan_file.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <map>

#include "engine/base/config.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::job {
namespace {

constexpr Limits natural = between(0, std::numeric_limits<int>::max());
constexpr Limits count = between(1, std::numeric_limits<int>::max());

std::uint64_t hash_at(const Config& c, const char* key) {
  const std::string text = c.text(key, std::nullopt);
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  if (text.size() != 16 || end != text.data() + text.size())
    throw c.error(key, fmt::format("\"{}\" must be 16 hexadecimal digits", text));
  return value;
}

template <class E>
E choice_at(const Config& c, const char* key) {
  return *from_name<E>(c.text(key, std::nullopt, names_of<E>()));
}

/// None for "automatic": the code that lowers the plan decides.
template <class E>
std::optional<E> maybe_at(const Config& c, const char* key) {
  std::vector<std::string> names = names_of<E>();
  names.emplace_back("automatic");
  return from_name<E>(c.text(key, std::nullopt, names));
}

int whole(const Config& c, const char* key, Limits limits) {
  return static_cast<int>(c.integer(key, std::nullopt, limits));
}

bool flag_at(const Config& c, const char* key) {
  if (!c.has(key)) c.text(key, std::nullopt);  // throws: the key is required
  return c.flag(key, false);
}

/// A list that must be present; an empty one is fine.
template <class F>
auto list_at(const Config& c, const char* key, F read) {
  if (!c.has(key)) c.text(key, std::nullopt);
  return read();
}

/// Infinite when the key is missing (see Writer::seconds).
double seconds_at(const Config& c, const char* key) {
  return c.has(key) ? c.number(key, 0.0, at_least(0)) : std::numeric_limits<double>::infinity();
}

MadeFor read_made_for(const Config& c) {
  return {.model = c.text("model", std::nullopt),
          .cluster = c.text("cluster", std::nullopt),
          .model_hash = hash_at(c, "model_hash"),
          .cluster_hash = hash_at(c, "cluster_hash"),
          .profile_hash = hash_at(c, "profile_hash")};
}

/// Finds the index of a named entry of a table. Throws InputError with the nearest known name.
class Index {
 public:
  template <class Table>
  Index(const Table& table, std::string what) : what_(std::move(what)) {
    for (const auto& entry : table) {
      of_.emplace(entry.name, static_cast<Id>(of_.size()));
      names_.push_back(entry.name);
    }
  }
  Id at(const Config& c, const char* key, const std::string& name) const {
    const auto it = of_.find(name);
    if (it != of_.end()) return it->second;
    const std::string near = nearest(name, names_);
    throw c.error(key, fmt::format("\"{}\" is no {}{}", name, what_,
                                   near.empty() ? "" : "; did you mean \"" + near + "\"?"));
  }

 private:
  std::string what_;
  std::map<std::string, Id> of_ = {};
  std::vector<std::string> names_ = {};
};

/// By model chunk: its segments. Each text is "FIRST .. LAST".
std::vector<std::vector<Id>> read_stages(const Config& c, const Index& segments) {
  std::vector<std::vector<Id>> out;
  const std::string between = " .. ";
  for (const std::string& text : list_at(c, "stages", [&] { return c.texts("stages"); })) {
    const auto at = text.find(between);
    if (at == std::string::npos)
      throw c.error("stages", fmt::format("\"{}\" must be \"FIRST .. LAST\", two segments", text));
    const Id first = segments.at(c, "stages", text.substr(0, at));
    const Id last = segments.at(c, "stages", text.substr(at + between.size()));
    if (last < first)
      throw c.error("stages", fmt::format("\"{}\": the last segment comes before the first", text));
    out.emplace_back();
    for (Id s = first; s <= last; ++s) out.back().push_back(s);
  }
  return out;
}

std::vector<plan::LayerExchange> read_layers(const Config& c, const Index& segments) {
  std::vector<plan::LayerExchange> out;
  for (const Config& one : c.sections("layers")) {
    if (segments.at(one, "segment", one.text("segment", std::nullopt)) != out.size())
      throw one.error("segment", "layers must stand in the model's order, each once");
    out.push_back(
        {.density = one.number("density", std::nullopt, {.least = 0, .most = 1, .open = true}),
         .reduction = choice_at<plan::Reduction>(one, "reduction"),
         .coding = choice_at<program::Coding>(one, "coding")});
  }
  return out;
}

void read_averaging(const Config& c, plan::Averaging& how) {
  if (c.has("local_steps")) how.local_steps = whole(c, "local_steps", count);
  if (c.has("outer_lr")) how.outer_lr = c.number("outer_lr", std::nullopt, above(0));
  if (c.has("outer_momentum"))
    how.outer_momentum = c.number("outer_momentum", std::nullopt, {.least = 0, .most = 0.999});
  if (c.has("graph")) how.graph = choice_at<plan::Graph>(c, "graph");
  if (c.has("degree")) how.degree = whole(c, "degree", count);
  if (c.has("graph_seed")) how.graph_seed = whole(c, "graph_seed", natural);
}

plan::Plan read_plan(const Config& c, const model::ModelSpec& model,
                     const cluster::Cluster& cluster) {
  const Index segments(model.segments, "segment of " + model.name);
  const Index devices(cluster.devices(), "device of " + cluster.name());
  const auto integers = [&](const char* key, Limits limits) {
    return list_at(c, key, [&] { return c.integers(key, limits); });
  };
  plan::Plan plan;
  plan.method = c.text("method", std::nullopt);
  plan.mesh.pp = whole(c, "pp", count), plan.mesh.dp = whole(c, "dp", count),
  plan.mesh.tp = whole(c, "tp", count);
  if (c.has("cp"))
    plan.mesh.cp = whole(c, "cp", count),
    plan.mesh.context = choice_at<plan::Context>(c, "context");
  plan.mesh.order = c.text("order", std::nullopt);
  plan.mesh.servers = whole(c, "servers", natural);
  plan.exchange.zero = whole(c, "zero", between(0, 3));
  plan.mesh.sequence_parallel = flag_at(c, "sequence_parallel");
  plan.schedule.global_batch = whole(c, "global_batch", count);
  plan.schedule.micro_batches = whole(c, "micro_batches", count);
  for (std::int64_t share : integers("shares", count))
    plan.schedule.shares.push_back(static_cast<int>(share));
  plan.schedule.virtual_stages = whole(c, "virtual_stages", count);
  plan.schedule.staleness = whole(c, "staleness", natural);
  plan.placement.stages = read_stages(c, segments);
  plan.exchange.bucket = Bytes(c.number("bucket_bytes", std::nullopt, at_least(0)));
  plan.precision = choice_at<program::DType>(c, "precision");
  plan.fp8 = c.flag("fp8", false);  // files of older versions
  if (plan.fp8 && plan.precision != program::DType::bf16)
    throw c.error("fp8", "needs precision = \"bf16\", the type of all but the 8-bit products");
  plan.schedule.recompute = flag_at(c, "recompute");
  if (c.has("recompute_unit"))  // files of older versions have no unit
    plan.schedule.recompute_unit = choice_at<plan::RecomputeUnit>(c, "recompute_unit");
  if (c.has("recompute_layers"))
    plan.schedule.recompute_layers = whole(c, "recompute_layers", natural);
  if (c.has("save_every")) {
    plan.checkpoints.every = whole(c, "save_every", count);
    plan.checkpoints.to = choice_at<program::Medium>(c, "save_to");
    if (plan.checkpoints.to == program::Medium::peers)
      plan.checkpoints.group = whole(c, "save_group", count);
  }
  plan.exchange.keep_gathered = flag_at(c, "keep_gathered");
  plan.exchange.reduce_once = c.flag("reduce_once", false);  // files of older versions
  if (c.has("prefetch")) plan.exchange.prefetch = whole(c, "prefetch", between(0, 4096));
  if (c.has("pending_buckets"))
    plan.exchange.pending_buckets = whole(c, "pending_buckets", between(1, 4096));
  if (c.has("shard_group")) plan.exchange.shard_group = whole(c, "shard_group", natural);
  if (c.has("reshard_group")) plan.exchange.reshard_group = whole(c, "reshard_group", natural);
  plan.exchange.fp32_gradients = c.flag("fp32_gradients", false);  // files of older versions
  plan.master_weights = c.flag("master_weights", true);            // these, too
  plan.bf16_moments = c.flag("bf16_moments", false);
  if (c.has("offload")) plan.exchange.offload = choice_at<plan::Offload>(c, "offload");
  plan.clip = flag_at(c, "clip");
  plan.exchange.density = c.number("density", std::nullopt, {.least = 0, .most = 1, .open = true});
  plan.exchange.s_min = c.number("s_min", std::nullopt, between(0, 1));
  plan.exchange.s_max = c.number("s_max", std::nullopt, between(0, 1));
  plan.exchange.selector = choice_at<program::Selector>(c, "selector");
  plan.exchange.feedback = choice_at<program::Feedback>(c, "feedback");
  plan.exchange.reduction = maybe_at<plan::Reduction>(c, "reduction");
  plan.exchange.coding = maybe_at<program::Coding>(c, "coding");
  plan.exchange.observe = whole(c, "observe", natural);
  if (c.has("bits")) plan.exchange.bits = whole(c, "bits", between(1, 8));
  if (c.has("block")) plan.exchange.block = whole(c, "block", between(8, 1 << 24));
  if (c.has("error_feedback")) plan.exchange.error_feedback = flag_at(c, "error_feedback");
  if (c.has("rank")) plan.exchange.rank = whole(c, "rank", between(1, 1024));
  if (c.has("warm_start")) plan.exchange.warm_start = flag_at(c, "warm_start");
  if (c.has("start")) plan.exchange.start = whole(c, "start", between(0, 1 << 30));
  if (c.has("freeze")) plan.exchange.freeze = whole(c, "freeze", between(1, 1 << 30));
  if (c.has("cycle_time")) plan.exchange.cycle_time = c.number("cycle_time", 0, between(0, 1));
  if (c.has("response_cache"))
    plan.exchange.response_cache = whole(c, "response_cache", between(0, 1 << 20));
  read_averaging(c, plan.exchange.averaging);
  if (c.has("fused_after"))
    for (const std::int64_t segment :
         integers("fused_after", between(0, static_cast<double>(model.segments.size()) - 1)))
      plan.exchange.fused_after.push_back(static_cast<Id>(segment));
  if (c.has("credit")) plan.exchange.credit = whole(c, "credit", count);
  if (c.has("local_ranks")) plan.exchange.local_ranks = whole(c, "local_ranks", count);
  if (c.has("server_placement"))
    plan.exchange.server_placement = choice_at<plan::ServerPlacement>(c, "server_placement");
  if (c.has("push_order"))
    for (const std::int64_t partition : integers("push_order", natural))
      plan.exchange.push_order.push_back(static_cast<Id>(partition));
  plan.schedule.pipeline = choice_at<plan::Pipeline>(c, "pipeline");
  for (std::int64_t node : integers("node_of", natural))
    plan.placement.node_of.push_back(static_cast<Id>(node));
  plan.exchange.collective = choice_at<program::Algorithm>(c, "collective");
  plan.optimizer = choice_at<plan::Optimizer>(c, "optimizer");
  for (const std::string& name :
       list_at(c, "rank_to_device", [&] { return c.texts("rank_to_device"); }))
    plan.placement.rank_to_device.push_back(devices.at(c, "rank_to_device", name));
  const std::int64_t world =
      std::int64_t{plan.mesh.pp} * plan.mesh.dp * plan.mesh.cp * plan.mesh.tp + plan.mesh.servers;
  for (const auto& [key, size] : {std::pair("node_of", plan.placement.node_of.size()),
                                  {"rank_to_device", plan.placement.rank_to_device.size()}})
    if (size != 0 && static_cast<std::int64_t>(size) != world)
      throw c.error(key, fmt::format("has {} entries, but pp x dp x cp x tp + servers are {} ranks",
                                     size, world));
  plan.exchange.layers = read_layers(c, segments);
  return plan;
}

plan::Decision read_why(const Config& c) {
  plan::Decision d;
  d.seconds = seconds_at(c, "seconds");
  d.dry_run_seconds = seconds_at(c, "dry_run_seconds");
  d.candidates = whole(c, "candidates", natural), d.pruned = whole(c, "pruned", natural);
  d.dry_run = whole(c, "dry_run", natural), d.beyond_budget = whole(c, "beyond_budget", natural);
  d.would_change = c.texts("would_change");
  d.warnings = c.texts("warnings");
  for (const Config& one : c.sections("choices")) {
    plan::Choice choice{.name = one.text("name", std::nullopt),
                        .value = one.text("value", std::nullopt),
                        .seconds = seconds_at(one, "seconds")};
    for (const Config& other : one.sections("runners_up"))
      choice.runners_up.push_back({.value = other.text("value", std::nullopt),
                                   .seconds = seconds_at(other, "seconds"),
                                   .why = other.text("why", std::nullopt)});
    d.choices.push_back(std::move(choice));
  }
  for (const Config& one : c.sections("runners_up"))
    d.runners_up.push_back({.value = one.text("value", std::nullopt),
                            .seconds = seconds_at(one, "seconds"),
                            .why = one.text("why", std::nullopt)});
  for (const Config& one : c.sections("infeasible"))
    d.infeasible.push_back({.constraint = one.text("constraint", std::nullopt),
                            .candidates = whole(one, "candidates", natural),
                            .nearest = one.text("nearest", std::nullopt)});
  return d;
}

void check_version(const Config& file) {
  const std::int64_t version = file.integer("version", std::nullopt);
  if (version != PlanFile::version)
    throw file.error("version", fmt::format("{}: this build reads version {}; plan again", version,
                                            PlanFile::version));
}

void check_made_for(const Config& c, const MadeFor& stated, const MadeFor& here) {
  const auto differ = [&](const char* key, const std::string& was, const std::string& is,
                          const char* what, const char* inside) {
    const std::string how =
        was == is ? fmt::format("{} ({})", inside, is) : fmt::format("it is \"{}\"", is);
    return c.error(key, fmt::format("the plan was made for \"{}\", which is not the job's {}: {}; "
                                    "plan again for this job",
                                    was, what, how));
  };
  if (stated.model_hash != here.model_hash)
    throw differ("model", stated.model, here.model, "model", "tied weights or padding differ");
  if (stated.cluster_hash != here.cluster_hash)
    throw differ("cluster", stated.cluster, here.cluster, "cluster",
                 "bandwidths, latencies, rates or cables differ");
}

void check_unedited(const Config& file, const PlanFile& read, const model::ModelSpec& model,
                    const cluster::Cluster& cluster) {
  std::string now = "it is not even complete";
  try {
    const std::uint64_t hash = hash_of(read.why.plan, read.made_for, model, cluster);
    if (hash == read.hash) return;
    now = hash_text(hash) + " now";
  } catch (const ProgramError&) {  // NOLINT(bugprone-empty-catch): stages or layers are missing
  }
  throw file.error("hash", fmt::format("{}: the plan was edited ({}); plans are immutable: change "
                                       "the job and plan again",
                                       hash_text(read.hash), now));
}

PlanFile read(const Config& file, const model::ModelSpec& model, const cluster::Cluster& cluster) {
  check_version(file);
  PlanFile out;
  out.hash = hash_at(file, "hash");
  const Config made = file.section("made_for");
  out.made_for = read_made_for(made);
  check_made_for(made, out.made_for, made_for(model, cluster, nullptr));
  plan::Plan plan = read_plan(file.section("plan"), model, cluster);
  out.why = read_why(file.section("why"));
  out.why.plan = std::move(plan);
  file.finish();
  check_unedited(file, out, model, cluster);
  return out;
}

}  // namespace

PlanFile parse_plan_file(const std::string& text, const std::string& file,
                         const model::ModelSpec& model, const cluster::Cluster& cluster) {
  return read(Config::parse(text, file), model, cluster);
}

PlanFile load_plan_file(const std::string& path, const model::ModelSpec& model,
                        const cluster::Cluster& cluster) {
  return read(Config::load(path), model, cluster);
}

plan::Plan load_plan(const std::string& path, const model::ModelSpec& model,
                     const cluster::Cluster& cluster) {
  return load_plan_file(path, model, cluster).why.plan;
}

int world_size_of_plan(const std::string& path) {
  const Config file = Config::load(path);
  check_version(file);
  const Config c = file.section("plan");
  const Limits ranks = between(1, 1 << 20);
  return whole(c, "pp", ranks) * whole(c, "dp", ranks) * whole(c, "tp", ranks) *
             (c.has("cp") ? whole(c, "cp", ranks) : 1) +
         whole(c, "servers", between(0, 1 << 20));
}

}  // namespace rehearse::job
