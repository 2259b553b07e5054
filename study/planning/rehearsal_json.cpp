// Writes and reads a rehearsal as JSON. Reading is strict: writing the rehearsal again must give
// the same JSON, so a file with unknown or edited keys is refused.
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/files/json_reader.h"
#include "engine/base/files/json_text.h"
#include "engine/base/fnv.h"
#include "engine/job/identity.h"
#include "study/planning/rehearsal.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::optional<StepTime>& t) {
  if (!t) return nullptr;
  return {{"mean", t->mean}, {"ci95", t->ci95}};
}

Json json_of(const Rehearsal& r) {
  Json baselines = Json::array(), runs = Json::array();
  for (const Baseline& b : r.baselines)
    baselines.push_back({{"method", b.method},
                         {"step_time_s", json_of(b.step_time)},
                         {"set", b.set},
                         {"cannot_run", b.cannot_run}});
  for (const RealRun& m : r.runs)
    runs.push_back({{"measured_step_time_s", json_of(m.step_time)},
                    {"steps", m.steps},
                    {"measured_by_predicted", m.ratio}});
  return {{"schema_version", Rehearsal::version},
          {"model_hash", hash_text(r.model_hash)},
          {"cluster_hash", hash_text(r.cluster_hash)},
          {"profile_hash", hash_text(r.profile_hash)},
          {"plan_hash", hash_text(r.plan_hash)},
          {"fidelity", r.fidelity},
          {"seeds", r.seeds},
          {"predicted_step_time_s", json_of(r.step_time)},
          {"peak_memory_bytes", r.peak_memory},
          {"over_memory_bytes", r.over_memory},
          {"baselines", std::move(baselines)},
          {"runs", std::move(runs)}};
}

std::optional<StepTime> time_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return StepTime{json.at("mean").get<double>(), json.at("ci95").get<double>()};
}

std::uint64_t hash_of(const Json& json) {
  const auto text = json.get<std::string>();
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

Rehearsal from(const Json& json, const std::string& file) {
  const JsonReader reader(json, file);
  const auto whole = [&](const Json& value, const char* key) {
    return reader.integer_of<std::int64_t>(value, fmt::format("\"{}\"", key), 0,
                                           std::numeric_limits<std::int64_t>::max());
  };
  const auto whole_by_name = [&](const char* key) {
    std::map<std::string, std::int64_t> out;
    for (const auto& [name, value] : json.at(key).items()) out[name] = whole(value, key);
    return out;
  };
  Rehearsal r;
  r.model_hash = hash_of(json.at("model_hash"));
  r.cluster_hash = hash_of(json.at("cluster_hash"));
  r.profile_hash = hash_of(json.at("profile_hash"));
  r.plan_hash = hash_of(json.at("plan_hash"));
  r.fidelity = json.at("fidelity").get<std::string>();
  for (const Json& seed : json.at("seeds"))
    r.seeds.push_back(static_cast<std::uint64_t>(whole(seed, "seeds")));
  r.step_time = time_of(json.at("predicted_step_time_s"));
  r.peak_memory = whole_by_name("peak_memory_bytes");
  r.over_memory = whole_by_name("over_memory_bytes");
  for (const Json& b : json.at("baselines"))
    r.baselines.push_back({.method = b.at("method").get<std::string>(),
                           .step_time = time_of(b.at("step_time_s")),
                           .set = b.at("set").get<std::vector<std::string>>(),
                           .cannot_run = b.at("cannot_run").get<std::string>()});
  for (const Json& m : json.at("runs"))
    r.runs.push_back({.step_time = time_of(m.at("measured_step_time_s")).value_or(StepTime{}),
                      .steps = whole(m.at("steps"), "steps"),
                      .ratio = m.at("measured_by_predicted").get<double>()});
  return r;
}

}  // namespace

std::string to_json(const Rehearsal& rehearsal) { return json_of(rehearsal).dump(2) + "\n"; }

Rehearsal parse_rehearsal(const std::string& text, const std::string& file) {
  const auto wrong = [&](const std::string& what) {
    return InputError(fmt::format("{}: {}; simulate the plan again", file, what));
  };
  const Json json = parse_json(text, file);
  try {
    if (const Json& version = json.at("schema_version"); version != Rehearsal::version)
      throw wrong(fmt::format("\"schema_version\": {}: this build reads {}", version.dump(),
                              Rehearsal::version));
    Rehearsal out = from(json, file);
    if (json_of(out) != json) throw wrong("it holds what no rehearsal holds: it was edited");
    if (!out.step_time && out.over_memory.empty())
      throw wrong("\"predicted_step_time_s\" is missing");
    for (const auto& [device, bytes] : out.over_memory)
      if (!out.peak_memory.contains(device))
        throw wrong(fmt::format("\"peak_memory_bytes\" lacks {}", device));
    return out;
  } catch (const nlohmann::json::exception& error) {
    throw wrong(fmt::format("not a rehearsal: {}", words_of(error)));
  }
}

}  // namespace rehearse::study
