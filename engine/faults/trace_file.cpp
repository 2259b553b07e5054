#include "engine/faults/trace_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "engine/base/files/file_kinds.h"
#include "engine/base/files/toml_text.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::faults {
namespace {

constexpr Limits natural = between(0, 1 << 24);
constexpr Limits steps = between(0, 1e15);
constexpr Limits when{.least = 0, .most = 1e9};  // 30 years
constexpr Limits multiple = limits::factor;

/// Names of a cluster, collected once for a whole file.
struct Names {
  std::vector<std::string> devices = {}, links = {};
  std::set<std::string> device_names = {}, link_names = {};
};

Names names_of_cluster(const Bounds& bounds) {
  Names out;
  if (bounds.cluster == nullptr) return out;
  for (const cluster::Device& d : bounds.cluster->devices()) out.devices.push_back(d.name);
  for (const cluster::Link& l : bounds.cluster->links()) out.links.push_back(l.name);
  out.device_names = {out.devices.begin(), out.devices.end()};
  out.link_names = {out.links.begin(), out.links.end()};
  return out;
}

void check_name(const Config& c, const char* key, const std::string& name,
                const std::set<std::string>& known, const std::vector<std::string>& all) {
  if (known.empty() || known.contains(name)) return;
  throw c.error(
      key, fmt::format("\"{}\" is no {} of the cluster{}", name, key, did_you_mean(name, all)));
}

Id index(const Config& c, const char* key, const char* what, std::int64_t value, std::int64_t count,
         bool checked) {
  if (checked && value >= count)
    throw c.error(key,
                  fmt::format("{} is not a {} of {}; at most {}", value, what, count, count - 1));
  return static_cast<Id>(value);
}

std::vector<std::string> allowed(const Targets& t) {
  std::vector<std::string> out;
  for (const auto& [can, name] : {std::pair(t.rank, "rank"),
                                  {t.node, "node"},
                                  {t.device, "device"},
                                  {t.link, "link"},
                                  {t.nodes, "nodes"}})
    if (can) out.emplace_back(name);
  return out;
}

void read_target(const Config& c, const Bounds& bounds, const Names& names, Event& e) {
  const bool checked = bounds.cluster != nullptr;
  const std::int64_t nodes = checked ? bounds.cluster->nodes() : 0;
  const auto rank = c.maybe_integer("rank", natural), node = c.maybe_integer("node", natural);
  e.device = c.text("device", "");
  e.link = c.text("link", "");
  for (const std::int64_t n : c.integers("nodes", natural))
    e.nodes.push_back(index(c, "nodes", "node", n, nodes, checked));
  if (rank) e.rank = index(c, "rank", "rank", *rank, bounds.world_size, bounds.world_size > 0);
  if (node) e.node = index(c, "node", "node", *node, nodes, checked);
  if (!e.device.empty()) check_name(c, "device", e.device, names.device_names, names.devices);
  if (!e.link.empty()) check_name(c, "link", e.link, names.link_names, names.links);

  const Targets can = takes(e.kind);
  int stated = 0;
  for (const auto& [has, may, key] : {std::tuple(rank.has_value(), can.rank, "rank"),
                                      {node.has_value(), can.node, "node"},
                                      {c.has("device"), can.device, "device"},
                                      {c.has("link"), can.link, "link"},
                                      {c.has("nodes"), can.nodes, "nodes"}}) {
    if (has && !may)
      throw c.error(key, fmt::format("{} has no {}; it has {}", name_of(e.kind), key,
                                     fmt::join(allowed(can), " or ")));
    stated += has ? 1 : 0;
  }
  if (stated != 1 && (stated != 0 || !can.nothing))
    throw c.error("kind",
                  fmt::format("{} needs {} {}", name_of(e.kind), stated == 0 ? "a" : "only one of",
                              fmt::join(allowed(can), " or ")));
}

Event read_event(const Config& c, const Bounds& bounds, const Names& names) {
  Event e;
  e.kind = *from_name<Kind>(c.text("kind", std::nullopt, names_of<Kind>()));
  read_target(c, bounds, names, e);
  const Seconds at = c.seconds("at", Seconds(0), when);
  e.step = c.integer("step", 0, steps);
  e.phase = *from_name<Phase>(c.text("phase", "begin", names_of<Phase>()));
  if (c.has("at")) e.at = at;
  if (c.has("at") == c.has("step"))
    throw c.error(c.has("at") ? "at" : "kind",
                  c.has("at") ? "and step: an event has one of the two" : "needs at or step");
  if (c.has("phase") && !c.has("step")) throw c.error("phase", "needs step");
  e.duration = c.seconds("duration", Seconds(0), when);
  if (c.has("duration") && !takes_duration(e.kind))
    throw c.error("duration", fmt::format("{} has no duration", name_of(e.kind)));
  e.factor = c.number("factor", 1, e.kind == Kind::packet_loss ? limits::part : multiple);
  if (e.factor < 1 &&
      (e.kind == Kind::slows || e.kind == Kind::link_slow || e.kind == Kind::disk_slow))
    throw c.error("factor", fmt::format("{} makes slower: at least 1", name_of(e.kind)));
  if (c.has("factor") && !takes_factor(e.kind))
    throw c.error("factor", fmt::format("{} has no factor", name_of(e.kind)));
  if (!c.has("factor") && needs_factor(e.kind))
    throw c.error("kind", fmt::format("{} needs a factor", name_of(e.kind)));
  e.detection = c.seconds("detection", Seconds(0), when);
  e.cause = c.text("cause", "");
  return e;
}

Trace read_trace(const Config& file, const Bounds& bounds) {
  check_kind(file, FileKind::fault_trace);
  const std::int64_t version = file.integer("version", std::nullopt);
  if (version != trace_version)
    throw file.error("version", fmt::format("{} is not known; this program reads version {}",
                                            version, trace_version));
  Trace trace;
  trace.cluster = file.text("cluster", "");
  trace.model = file.text("model", "");
  trace.seed = static_cast<std::uint64_t>(file.integer("seed", 0, at_least(0)));
  trace.duration = file.seconds("duration", Seconds(0), when);
  if (const auto spares = file.maybe_integer("model_spares", natural))
    trace.spares = static_cast<int>(*spares);
  const Seconds replacement = file.seconds("model_replacement", Seconds(0), when);
  if (file.has("model_replacement")) trace.replacement = replacement;
  const std::vector<Config> events = file.sections("event");
  if (events.size() > most_events)
    throw file.error("event", fmt::format("{} events; at most {}", events.size(), most_events));
  const Names names = names_of_cluster(bounds);
  for (const Config& c : events) trace.events.push_back(read_event(c, bounds, names));
  file.finish();
  return trace;
}

std::string duration_of(Seconds s) { return fmt::format("\"{}s\"", s.value); }

}  // namespace

Trace load_trace(const std::string& path, const Bounds& bounds) {
  return read_trace(Config::load(path), bounds);
}

std::string to_toml(const Trace& trace) {
  std::string out = fmt::format("version = {}\n", trace_version);
  if (!trace.cluster.empty()) out += fmt::format("cluster = {}\n", toml_string(trace.cluster));
  if (!trace.model.empty()) out += fmt::format("model = {}\n", toml_string(trace.model));
  if (trace.seed != 0) out += fmt::format("seed = {}\n", trace.seed);
  if (trace.duration.value != 0) out += fmt::format("duration = {}\n", duration_of(trace.duration));
  if (trace.spares) out += fmt::format("model_spares = {}\n", *trace.spares);
  if (trace.replacement)
    out += fmt::format("model_replacement = {}\n", duration_of(*trace.replacement));
  for (const Event& e : trace.events) {
    out += fmt::format("\n[[event]]\nkind = \"{}\"\n", name_of(e.kind));
    if (e.rank != none) out += fmt::format("rank = {}\n", e.rank);
    if (e.node != none) out += fmt::format("node = {}\n", e.node);
    if (!e.device.empty()) out += fmt::format("device = {}\n", toml_string(e.device));
    if (!e.link.empty()) out += fmt::format("link = {}\n", toml_string(e.link));
    if (!e.nodes.empty()) out += fmt::format("nodes = [{}]\n", fmt::join(e.nodes, ", "));
    if (e.at)
      out += fmt::format("at = {}\n", duration_of(*e.at));
    else
      out += fmt::format("step = {}\nphase = \"{}\"\n", e.step, name_of(e.phase));
    if (e.duration.value != 0) out += fmt::format("duration = {}\n", duration_of(e.duration));
    if (needs_factor(e.kind) || e.factor != 1) out += fmt::format("factor = {}\n", e.factor);
    if (e.detection.value != 0) out += fmt::format("detection = {}\n", duration_of(e.detection));
    if (!e.cause.empty()) out += fmt::format("cause = {}\n", toml_string(e.cause));
  }
  return out;
}

std::vector<Config::Key> trace_keys() {
  const Config file =
      Config::parse("version = 1\n[[event]]\nkind = \"rank_dies\"\nrank = 0\nstep = 0\n", "keys");
  read_trace(file, {});
  return file.keys();
}

}  // namespace rehearse::faults
