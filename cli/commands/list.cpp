// `rehearse list`: the models, clusters, devices, methods, software and failure models that come
// with the program.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "engine/base/files/config.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/faults/failure_model.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "engine/software/software.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

Json models() {
  Json out = Json::array();
  for (const std::string& name : model::known_models()) {
    const model::ModelSpec m = model::load_model(name, 0);
    const Config file = Config::load(find_data("models", name, "model").string());
    out.push_back({{"name", name},
                   {"family", file.text("family", std::nullopt)},
                   {"parameters", parameters_of(m)},
                   {"layers", m.layers},
                   {"hidden", m.hidden},
                   {"heads", m.heads},
                   {"kv_heads", m.kv_heads},
                   {"vocab", m.vocab},
                   {"seq_len", m.seq_len}});
  }
  return out;
}

Json clusters() {
  Json out = Json::array();
  for (const std::string& name : cluster::known_clusters()) {
    const Config file = Config::load(find_data("platforms", name, "cluster").string());
    const std::string scale = file.text("scale", "fixed");
    out.push_back({{"name", name},
                   {"size", scale == "fixed"   ? ""
                            : scale == "torus" ? ":AxBxC"
                                               : ":N"},
                   {"summary", file.text("summary", "")}});
  }
  return out;
}

Json devices() {
  Json out = Json::array();
  for (const std::string& name : cluster::known_devices()) {
    const cluster::DeviceKind kind = cluster::load_device(name);
    out.push_back({{"name", name},
                   {"memory_bytes", kind.memory.value},
                   {"memory_bandwidth", kind.memory_bandwidth.value},
                   {"f32", kind.peak_f32.value},
                   {"f16", kind.peak_f16.value},
                   {"bf16", kind.peak_bf16.value},
                   {"fp8", kind.peak_fp8.value},
                   {"price", kind.price.known() ? Json(to_text(kind.price)) : Json()},
                   {"source", kind.source}});
  }
  return out;
}

Json methods_known() {
  Json out = Json::array();
  for (const auto& [name, method] : methods::strategies())
    out.push_back({{"name", name}, {"summary", method.summary}, {"source", method.source}});
  return out;
}

/// Software or failure models.
template <class Load>
Json summaries(const std::vector<std::string>& names, const Load& load) {
  Json out = Json::array();
  for (const std::string& name : names) {
    const auto one = load(name);
    out.push_back({{"name", name}, {"summary", one.summary}, {"source", one.source}});
  }
  return out;
}

struct Listing {
  const char *name, *key;  // as the command calls it, and the key of a job that takes a name
  Json (*all)();
  /// What the table shows of an entry, with a first line of titles.
  std::vector<std::string> titles;
  std::vector<std::string> (*cells)(const Json& one);
};

std::string text(const Json& one, const char* key) { return one.at(key).get<std::string>(); }
std::string whole(const Json& one, const char* key) {
  return std::to_string(one.at(key).get<std::int64_t>());
}
std::string rate(const Json& one, const char* key) {
  const auto value = one.at(key).get<double>();
  return value > 0 ? fmt::format("{:.4g} TFLOP/s", value / 1e12) : "-";
}
std::vector<std::string> summarised(const Json& one) {
  return {text(one, "name"), text(one, "summary")};
}

const std::vector<Listing>& kinds() {
  static const std::vector<Listing> all{
      {"models",
       "model.name",
       models,
       {"model", "family", "parameters", "layers", "hidden", "heads", "kv heads", "vocabulary",
        "tokens"},
       [](const Json& one) -> std::vector<std::string> {
         const auto parameters = one.at("parameters").get<double>();
         return {text(one, "name"),
                 text(one, "family"),
                 parameters >= 1e9 ? fmt::format("{:.4g} B", parameters / 1e9)
                                   : fmt::format("{:.4g} M", parameters / 1e6),
                 whole(one, "layers"),
                 whole(one, "hidden"),
                 whole(one, "heads"),
                 whole(one, "kv_heads"),
                 whole(one, "vocab"),
                 whole(one, "seq_len")};
       }},
      {"clusters",
       "cluster.name",
       clusters,
       {"cluster", "what it is"},
       [](const Json& one) -> std::vector<std::string> {
         return {text(one, "name") + text(one, "size"), text(one, "summary")};
       }},
      {"devices",
       "cluster.devices",
       devices,
       {"device", "memory", "bandwidth", "f32", "f16", "bf16", "fp8", "price"},
       [](const Json& one) -> std::vector<std::string> {
         return {text(one, "name"),
                 to_text(Bytes(one.at("memory_bytes").get<double>())),
                 to_text(BytesPerSecond(one.at("memory_bandwidth").get<double>())),
                 rate(one, "f32"),
                 rate(one, "f16"),
                 rate(one, "bf16"),
                 rate(one, "fp8"),
                 one.at("price").is_null() ? "-" : text(one, "price")};
       }},
      {"methods", "method.name", methods_known, {"method", "what it does"}, summarised},
      {"software",
       "software.name",
       [] { return summaries(software::known_software(), software::load_software); },
       {"software", "what it is"},
       summarised},
      {"failures",
       "faults.model",
       [] { return summaries(faults::known_models(), faults::load_model); },
       {"failure model", "what it is"},
       summarised}};
  return all;
}

std::string described(const Listing& kind) {
  std::vector<std::vector<std::string>> lines{kind.titles};
  for (const Json& one : kind.all()) lines.push_back(kind.cells(one));
  return table(lines);
}

std::string names(const Listing& kind) {
  std::vector<std::string> all;
  for (const Json& one : kind.all()) all.push_back(text(one, "name"));
  return fmt::format("{} ({}): {}\n", kind.name, kind.key, fmt::join(all, ", "));
}

int run_list(const Context& context, const std::string& what) {
  Json json{{"schema_version", 1}};
  std::string out;
  for (const Listing& kind : kinds()) {
    if (!what.empty() && what != kind.name) continue;
    if (context.json)
      json[kind.name] = kind.all();
    else
      out += what.empty() ? names(kind) : described(kind);
  }
  if (context.json)
    std::cout << text_of(with_header(context, json));
  else
    std::cout << out << (what.empty() ? "rehearse list WHAT says more of each\n" : "");
  return good;
}

}  // namespace

void add_list(CLI::App& app, Context& context) {
  const Command command(app, context, "list",
                        "List the models, clusters, devices and methods that are known",
                        "  rehearse list\n"
                        "  rehearse list models\n"
                        "  rehearse list devices --json");
  auto what = std::make_shared<std::string>();
  std::vector<std::string> all;
  for (const Listing& kind : kinds()) all.emplace_back(kind.name);
  command.option("WHAT", *what, "What to list; without it, the names of all").one_of(all);
  command.runs([&context, what] { return run_list(context, *what); });
}

}  // namespace rehearse::cli
