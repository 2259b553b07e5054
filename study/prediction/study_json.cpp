// The JSON of a study: what `rehearse simulate` and each row of `compare` write.
#include <fmt/format.h>

#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "study/long_runs/fault_study.h"
#include "study/prediction/study.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

Json steps_json(const StepsRun& s) {
  return {{"by_seed", s.by_seed},
          {"most", s.most},
          {"period", s.period > 0 ? Json(s.period) : Json()},            // null: none
          {"precision", s.precision > 0 ? Json(s.precision) : Json()}};  // null: none asked
}

Json interval_json(const Study& s) {
  if (!s.interval) return nullptr;
  return {{"level", s.interval_level}, {"low", s.interval->first}, {"high", s.interval->second}};
}

Json energy_json(const Study& s) {
  const double joules = s.summary.joules_per_step;
  if (joules <= 0) return nullptr;
  return {
      {"per_step", joules}, {"per_rank", joules / s.world_size}, {"idle_unknown", s.idle_unknown}};
}

Json cost_json(const Study& s) {
  const std::optional<Cost> cost = cost_of(s);
  if (!cost) return nullptr;
  return {{"currency", cost->currency},
          {"per_hour", cost->per_hour},
          {"per_step", cost->per_step},
          {"per_billion_tokens", cost->per_billion_tokens},
          {"prices", s.rent.prices}};
}

}  // namespace

Json to_json(const Study& s) {
  Json mesh = Json::object(), memory = Json::object(), parts = Json::object();
  for (const program::Axis& axis : s.mesh) mesh[axis.name] = axis.size;
  if (s.servers > 0) mesh["servers"] = s.servers;
  for (const planner::DeviceNeed& need : s.memory) {
    memory[need.kind] = need.need;
    Json& one = parts[need.kind] = Json::object();
    for (std::size_t p = 0; p < need.parts.size(); ++p)
      one[name_of(static_cast<link::Part>(p))] = need.parts[p];
    one["reserve"] = need.reserve, one["capacity"] = need.capacity;
  }
  const planner::HostNeed* const host = fullest_host(s);
  const execution::Spread& t = s.summary.step_time;
  Json out{{"schema_version", 1}, {"method", s.method}};
  add_subject(s.subject, out);
  out.update(Json{
      {"world_size", s.world_size},
      {"mesh", std::move(mesh)},
      {"rank_to_device", s.devices},
      {"seeds", s.seeds},
      {"steps", steps_json(s.steps)},
      {"step_time_s", {{"mean", t.mean}, {"std", t.std}, {"ci95", t.ci95}, {"values", t.values}}},
      {"interval_s", interval_json(s)},  // null: not known
      {"samples_per_s", s.summary.samples_per_s},
      {"tokens_per_s", s.summary.tokens_per_s},
      {"mfu", s.summary.mfu > 0 ? Json(s.summary.mfu) : Json()},  // null: unknown
      {"bubble_fraction", s.summary.bubble_fraction},
      {"exposed_comm_s", s.summary.exposed_comm_s},
      {"bytes_sent_per_rank",
       {{"mean", s.summary.bytes_sent_mean}, {"max", s.summary.bytes_sent_max}}},
      {"bytes_per_step_total", s.summary.bytes_per_step},
      {"collectives", to_json(s.collectives)},
      {"energy_j", energy_json(s)},       // null: unknown
      {"cost", cost_json(s)},             // null: unknown
      {"checkpoint", to_json(s.saving)},  // null: none behind training
      {"peak_memory_bytes", std::move(memory)},
      {"memory_parts_bytes", std::move(parts)},
      {"host_memory_bytes", host == nullptr ? Json() : Json(host->need)},  // null: none is used
      {"robustness", s.summary.robustness},
      {"fidelity", name_of(s.fidelity)},
      {"calibrated", s.calibrated},
      {"program_hash", hash_text(s.program_hash)},
      {"cluster_hash", hash_text(s.cluster_hash)},
      {"warnings", s.warnings}});
  if (s.faults) out["faults"] = to_json(*s.faults);
  if (s.last_phase > 1) out["first_step"] = s.last_phase;
  if (s.deadline)
    out["round"] = {{"deadline_s", s.deadline->value}, {"in_time", s.summary.in_time}};
  if (!s.shares.empty()) out["shares"] = s.shares;
  if (s.fusion)
    out["fusion"] = {{"cycle_time_s", s.fusion->cycle_s},
                     {"bucket_bytes", s.fusion->buffer_bytes},
                     {"cycles_with_gradients", s.fusion->cycles}};
  return out;
}

Json timings_json(const Study& s) {
  return {
      {"compile_s", s.compile_s}, {"link_s", s.link_s}, {"costs_s", s.costs_s}, {"run_s", s.run_s}};
}

}  // namespace rehearse::study
