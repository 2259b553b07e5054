// Reads plan files. The file must state every key of the plan: a default would change the plan's
// meaning if a later version changed that default.
#include "engine/job/plan_file.h"

#include <fmt/format.h>

#include <charconv>
#include <concepts>
#include <limits>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/fnv.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/plan/fields.h"

namespace rehearse::job {
namespace {

using plan::natural;

std::uint64_t hash_at(const Config& c, const char* key) {
  const std::string text = c.text(key, std::nullopt);
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  if (text.size() != 16 || end != text.data() + text.size())
    throw c.error(key, fmt::format("\"{}\" must be 16 hexadecimal digits", text));
  return value;
}

int whole(const Config& c, const char* key, Limits limits) {
  return static_cast<int>(c.integer(key, std::nullopt, limits));
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
    throw c.error(key, fmt::format("\"{}\" is no {}{}", name, what_, did_you_mean(name, names_)));
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

template <class E>
E choice_at(const Config& c, const char* key) {
  return *from_name<E>(c.text(key, std::nullopt, names_of<E>()));
}

std::vector<plan::LayerExchange> read_layers(const Config& c, const Index& segments) {
  std::vector<plan::LayerExchange> out;
  for (const Config& one : c.sections("layers")) {
    if (segments.at(one, "segment", one.text("segment", std::nullopt)) != out.size())
      throw one.error("segment", "layers must stand in the model's order, each once");
    out.push_back({.density = one.number("density", std::nullopt, plan::fraction),
                   .reduction = choice_at<plan::Reduction>(one, "reduction"),
                   .coding = choice_at<program::Coding>(one, "coding")});
  }
  return out;
}

/// Reads the fields of [plan] as FieldTexts (plan_file_write.cpp) writes them.
class FileFields {
 public:
  FileFields(const Config& section, const model::ModelSpec& model, const cluster::Cluster& cluster)
      : c_(section),
        segments_(model.segments, "segment of " + model.name),
        devices_(cluster.devices(), "device of " + cluster.name()) {}

  template <class T>
  void operator()(const char* key, T&& member, const plan::Rule& rule) const {
    if (rule.stated.value_or(c_.has(key))) read(key, member, rule);
  }

 private:
  void read(const char* key, std::string& member, const plan::Rule&) const {
    member = c_.text(key, std::nullopt);
  }
  void read(const char* key, bool& member, const plan::Rule&) const {
    member = c_.flag(key, std::nullopt);
  }
  void read(const char* key, double& member, const plan::Rule& rule) const {
    member = c_.number(key, std::nullopt, rule.limits);
  }
  template <std::signed_integral I>
    requires(!std::is_same_v<I, bool>)
  void read(const char* key, I& member, const plan::Rule& rule) const {
    member = static_cast<I>(c_.integer(key, std::nullopt, rule.limits));
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const char* key, E& member, const plan::Rule&) const {
    member = choice_at<E>(c_, key);
  }
  template <class T>
  void read(const char* key, std::optional<T>& member, const plan::Rule& rule) const {
    if constexpr (std::is_enum_v<T>) {
      if (rule.automatic) {
        std::vector<std::string> names = names_of<T>();
        names.emplace_back("automatic");
        member = from_name<T>(c_.text(key, std::nullopt, names));
        return;
      }
    }
    read(key, member.emplace(), rule);
  }
  void read(const char* key, Seconds& member, const plan::Rule& rule) const {
    read(key, member.value, rule);
  }
  void read(const char* key, Bytes& member, const plan::Rule& rule) const {
    read(fmt::format("{}_bytes", key).c_str(), member.value, rule);
  }
  template <std::integral I>
  void read(const char* key, std::vector<I>& member, const plan::Rule& rule) const {
    for (const std::int64_t number :
         list_at(c_, key, [&] { return c_.integers(key, rule.limits); }))
      member.push_back(static_cast<I>(number));
  }
  void read(const char* key, plan::Devices<std::vector<Id>>& member, const plan::Rule&) const {
    for (const std::string& name : list_at(c_, key, [&] { return c_.texts(key); }))
      member.ids.push_back(devices_.at(c_, key, name));
  }
  void read(const char*, std::vector<std::vector<Id>>& stages, const plan::Rule&) const {
    stages = read_stages(c_, segments_);
  }
  void read(const char*, std::vector<plan::LayerExchange>& layers, const plan::Rule&) const {
    layers = read_layers(c_, segments_);
  }

  const Config& c_;
  Index segments_, devices_;
};

plan::Plan read_plan(const Config& c, const model::ModelSpec& model,
                     const cluster::Cluster& cluster) {
  plan::Plan plan;
  plan::each_field(plan, FileFields(c, model, cluster));
  if (plan.fp8 && plan.precision != program::DType::bf16)
    throw c.error("fp8", "needs precision = \"bf16\", the type of all but the 8-bit products");
  for (const Id segment : plan.exchange.fusion.fused_after)
    if (segment >= model.segments.size())
      throw c.error("fused_after", fmt::format("{} is no segment of {}; at most {}", segment,
                                               model.name, model.segments.size() - 1));
  const std::int64_t world =
      std::int64_t{plan.mesh.pp} * plan.mesh.dp * plan.mesh.cp * plan.mesh.tp + plan.mesh.servers;
  for (const auto& [key, size] : {std::pair("node_of", plan.placement.node_of.size()),
                                  {"rank_to_device", plan.placement.rank_to_device.size()}})
    if (size != 0 && static_cast<std::int64_t>(size) != world)
      throw c.error(key, fmt::format("has {} entries, but pp x dp x cp x tp + servers are {} ranks",
                                     size, world));
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
  check_kind(file, FileKind::plan);
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
