// The JSON of a long run, documented in docs/cli.md.
#include "engine/base/names.h"
#include "study/long_runs/goodput_study.h"

namespace rehearse::study {
namespace {

nlohmann::ordered_json cost_json(const LongRun& run, const Study& step) {
  const std::optional<RunCost> cost = cost_of(run, step);
  if (!cost) return nullptr;
  return {{"currency", cost->currency},
          {"per_hour", cost->per_hour},
          {"whole", cost->whole},
          {"spares", cost->spares},
          {"per_billion_tokens", cost->per_billion_tokens > 0
                                     ? nlohmann::ordered_json(cost->per_billion_tokens)
                                     : nlohmann::ordered_json()},
          {"prices", step.rent.prices}};
}

}  // namespace

nlohmann::ordered_json to_json(const LongRun& run, const Study& step, const JobFailures& failures) {
  using Json = nlohmann::ordered_json;
  const auto s = [](goodput::Ticks t) { return goodput::seconds(t).value; };
  const auto or_null = [](bool known, double value) { return known ? Json(value) : Json(); };
  const goodput::Setting& set = run.setting;
  const goodput::Summary& m = run.summary;
  const double every = static_cast<double>(set.save_every) * run.step.value;
  Json out{{"schema_version", 1}, {"method", step.method}};
  add_subject(step.subject, out);
  Json lost = Json::object();
  for (std::size_t l = 0; l < goodput::losses; ++l) lost[spellings(goodput::Loss{})[l]] = m.lost[l];
  Json curve = Json::array();
  for (const goodput::IntervalScore& one : run.scores)
    curve.push_back({{"steps", one.save_every},
                     {"seconds", static_cast<double>(one.save_every) * run.step.value},
                     {"goodput", one.goodput}});
  const bool fails = run.between.value > 0;
  const execution::Spread& g = m.goodput;
  out.update(
      Json{{"world_size", step.world_size},
           {"nodes", run.nodes},
           {"duration_s", run.duration.value},
           {"step_time_s", run.step.value},
           {"fidelity", name_of(step.fidelity)},
           {"calibrated", step.calibrated},
           {"failures", failures.source},
           {"seeds", failures.seeds},
           {"between_failures_s", or_null(fails, run.between.value)},
           {"policy", name_of(run.policy)},
           {"spares", set.spares},
           {"recovery_s",
            {{"detection", or_null(set.detection.has_value(), s(set.detection.value_or(0)))},
             {"restart", s(set.restart)},
             {"replacement", s(set.replacement)},
             {"replan", s(set.replan)},
             {"takeover", s(set.takeover)},
             {"copy", s(set.copy)}}},
           {"checkpoint",
            {{"kind", name_of(run.checkpoint.kind)},
             {"place", name_of(run.checkpoint.place)},
             {"bytes", run.bytes},
             {"stall_s", s(set.checkpoint.stall)},
             {"persist_s", s(set.checkpoint.persist)},
             {"load_s", s(set.checkpoint.load)},
             {"load_whole_s", s(set.checkpoint.load_whole)},
             {"every_steps", set.save_every},
             {"every_s", every},
             {"searched", run.searched}}},
           {"goodput", {{"mean", g.mean}, {"std", g.std}, {"ci95", g.ci95}, {"values", g.values}}},
           {"productive_s", m.productive},
           {"cost", cost_json(run, step)},
           {"lost_s", std::move(lost)},
           {"interruptions", m.interruptions},
           {"steps", m.steps},
           {"lost_steps", m.lost_steps},
           {"checkpoints", m.checkpoints},
           {"checkpoints_read", m.reads},
           {"checkpoints_destroyed", m.destroyed},
           {"least_replicas", m.least_replicas},
           {"waiting_at_end", m.waiting_at_end},
           {"intervals",
            {{"young_s", or_null(fails, run.young.value)},
             {"daly_s", or_null(fails, run.daly.value)},
             {"expected_goodput",
              or_null(run.closed_form_goodput.has_value(), run.closed_form_goodput.value_or(0))},
             {"curve", std::move(curve)}}},
           {"notes", run.notes},
           {"warnings", step.warnings}});
  return out;
}

}  // namespace rehearse::study
