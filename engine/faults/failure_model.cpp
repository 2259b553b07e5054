#include "engine/faults/failure_model.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/files/data_dir.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::faults {
namespace {

constexpr Limits rates = between(0, 1e6);
constexpr Limits waits{.least = 0, .most = 1e9};  // 30 years
constexpr Limits most_nodes = between(1, 1 << 17);

Cause read_cause(const Config& c) {
  Cause out;
  out.name = c.text("name", std::nullopt);
  out.kind = *from_name<Kind>(
      c.text("kind", "node_dies", {"node_dies", "rank_dies", "freezes", "slows", "wrong_numbers"}));
  out.rate = c.number("rate", std::nullopt, rates);
  out.shape = c.number("shape", 1, between(0.1, 10));
  out.transient = c.number("transient", 0, limits::part);
  out.detection = c.seconds("detection", Seconds(0), waits);
  out.domain = *from_name<Domain>(c.text("domain", "node", names_of<Domain>()));
  out.nodes = static_cast<int>(c.integer("nodes", 1, most_nodes));
  out.growth = c.number("growth", 0, between(0, 10));
  out.reference = c.number("reference", 1, most_nodes);
  out.lasts = c.seconds("lasts", Seconds(0), waits);
  out.factor = c.number("factor", 1, between(1, 1e6));  // slower
  const bool whole = out.kind == Kind::node_dies;
  if (out.domain == Domain::node && out.nodes != 1)
    throw c.error("nodes",
                  fmt::format("{}: a domain of one node; domain = \"leaf\" or \"rack\" has "
                              "more",
                              out.nodes));
  if (out.domain != Domain::node && !whole)
    throw c.error("domain", "only node_dies takes several nodes");
  if (c.has("transient") && !whole)
    throw c.error("transient", fmt::format("{} always leaves the node good; only node_dies has it",
                                           name_of(out.kind)));
  const bool for_a_while = out.kind == Kind::freezes || out.kind == Kind::slows;
  if (for_a_while != c.has("lasts"))
    throw c.error(for_a_while ? "kind" : "lasts",
                  for_a_while ? fmt::format("{} needs lasts", name_of(out.kind))
                              : fmt::format("{} does not last", name_of(out.kind)));
  if ((out.kind == Kind::slows) != c.has("factor"))
    throw c.error(out.kind == Kind::slows ? "kind" : "factor",
                  out.kind == Kind::slows ? "slows needs a factor"
                                          : fmt::format("{} has no factor", name_of(out.kind)));
  return out;
}

FailureModel read_model(const Config& file, const std::string& name) {
  check_kind(file, FileKind::failure_model);
  FailureModel out{.name = name};
  out.summary = file.text("summary", std::nullopt);
  out.source = file.text("source", std::nullopt);
  out.repair = file.seconds("repair", Seconds(86400), waits);
  out.repair_sigma = file.number("repair_sigma", 0, between(0, 5));
  out.replacement = file.seconds("replacement", Seconds(600), waits);
  out.spares = static_cast<int>(file.integer("spares", 0, between(0, 1 << 17)));
  for (const Config& c : file.sections("cause")) {
    out.causes.push_back(read_cause(c));
    for (std::size_t i = 0; i + 1 < out.causes.size(); ++i)
      if (out.causes[i].name == out.causes.back().name)
        throw c.error(
            "name", fmt::format("\"{}\" is the second cause of this name", out.causes.back().name));
  }
  if (out.causes.empty()) throw file.error("cause", "must have at least one [[cause]]");
  file.finish();
  return out;
}

}  // namespace

FailureModel load_model(const std::string& name_or_path) {
  return read_model(Config::load(find_data("faults", name_or_path, "failure model").string()),
                    name_or_path);
}

std::vector<std::string> known_models() { return data_names("faults"); }

std::vector<Config::Key> model_file_keys() {
  const Config file = Config::parse(
      "summary = \"any\"\nsource = \"any\"\n[[cause]]\nname = \"any\"\nrate = 1\n", "keys");
  read_model(file, "keys");
  return file.keys();
}

FailureModel independent(FailureModel model) {
  for (Cause& cause : model.causes) {
    cause.domain = Domain::node;
    cause.nodes = 1;
    cause.growth = 0;
  }
  return model;
}

double per_day(const Cause& cause, int nodes) {
  return cause.rate / 1000 * nodes * std::pow(nodes / cause.reference, cause.growth);
}

double interruptions_per_day(const FailureModel& model, int nodes) {
  double sum = 0;
  for (const Cause& cause : model.causes)
    if (cause.kind != Kind::slows) sum += per_day(cause, nodes);
  return sum;
}

}  // namespace rehearse::faults
