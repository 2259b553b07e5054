#include "study/sweep/sweep_point.h"

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/goodput/walk.h"
#include "engine/planner/planner.h"
#include "study/long_runs/fault_study.h"
#include "study/long_runs/goodput_rows.h"
#include "study/planning/decision.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

/// As `rehearse simulate` answers.
void simulated(const Sweep& sweep, const JobSource& source, Row& row) {
  job::Job job = load(source);
  const std::optional<plan::Decision> decided = decide_plan(job, nullptr);
  Study study = predict(job, sweep.options);
  if (decided) add_warnings(*decided, study);
  const execution::Summary& m = study.summary;
  row.metrics = {{"method", study.method},
                 {"world_size", study.world_size},
                 {"step_s", m.step_time.mean},
                 {"step_ci95_s", m.step_time.ci95},
                 {"interval_low_s", study.interval ? Json(study.interval->first) : Json()},
                 {"interval_high_s", study.interval ? Json(study.interval->second) : Json()},
                 {"samples_per_s", m.samples_per_s},
                 {"tokens_per_s", m.tokens_per_s},
                 {"mfu", m.mfu > 0 ? Json(m.mfu) : Json()},
                 {"bubble_fraction", m.bubble_fraction},
                 {"exposed_comm_s", m.exposed_comm_s},
                 {"peak_memory_bytes", peak_memory(study)},
                 {"joules_per_step", m.joules_per_step > 0 ? Json(m.joules_per_step) : Json()}};
  const std::optional<Cost> cost = cost_of(study);
  row.metrics.update(
      Json{{"cost_per_step", cost ? Json(cost->per_step) : Json()},
           {"cost_per_billion_tokens", cost ? Json(cost->per_billion_tokens) : Json()},
           {"currency", cost ? Json(cost->currency) : Json()}});
  row.warnings = study.warnings;
}

/// As `rehearse plan` answers.
void planned(const Sweep& sweep, const JobSource& source, Row& row) {
  const job::Job job = load_to_plan(source);
  plan::Decision d =
      decide_with_progress(job, {.rescore = sweep.options.fidelity != Fidelity::analytic});
  warn_of_trace(job, d.warnings);
  warn_of_encryption(job, d.warnings);
  row.metrics = {{"method", d.plan.method},
                 {"plan", planner::summary_of(d.plan)},
                 {"world_size", d.plan.mesh.world_size()},
                 {"step_s", d.seconds},
                 {"dry_run_s", d.dry_run_seconds},
                 {"candidates", d.candidates},
                 {"pruned", d.pruned},
                 {"dry_run", d.dry_run},
                 {"simulations", d.simulations}};
  const cluster::Rent rent = cluster::rent_of(job.cluster, d.plan.placement.rank_to_device);
  const bool known = rent.known();
  row.metrics.update(
      Json{{"cost_per_step", known ? Json(rent.per_hour / 3600 * d.seconds) : Json()},
           {"currency", known ? Json(rent.currency) : Json()}});
  row.warnings = d.warnings;
}

/// As `rehearse simulate --duration` answers.
void walked(const Sweep& sweep, const JobSource& source, Row& row) {
  job::Job job = load(source);
  decide_plan(job, nullptr);
  LongRuns runs(job, long_run_options(source, sweep.duration, sweep.options));
  const LongRun run = runs.run(job.recovery, job.checkpoint);
  const goodput::Summary& m = run.summary;
  row.metrics = {{"method", runs.step().method},
                 {"world_size", runs.step().world_size},
                 {"nodes", run.nodes},
                 {"step_s", run.step.value},
                 {"goodput", m.goodput.mean},
                 {"goodput_ci95", m.goodput.ci95},
                 {"productive_s", m.productive},
                 {"lost_s", std::accumulate(m.lost.begin(), m.lost.end(), 0.0)}};
  for (std::size_t l = 0; l < goodput::losses; ++l)
    row.metrics[std::string("lost_") + spellings(goodput::Loss{})[l] + "_s"] = m.lost[l];
  row.metrics.update(Json{{"interruptions", m.interruptions},
                          {"steps", m.steps},
                          {"lost_steps", m.lost_steps},
                          {"checkpoints", m.checkpoints},
                          {"every_steps", run.setting.save_every}});
  const std::optional<RunCost> cost = cost_of(run, runs.step());
  const bool counts = cost && cost->per_billion_tokens > 0;
  row.metrics.update(
      Json{{"cost", cost ? Json(cost->whole) : Json()},
           {"cost_spares", cost ? Json(cost->spares) : Json()},
           {"cost_per_billion_tokens", counts ? Json(cost->per_billion_tokens) : Json()},
           {"currency", cost ? Json(cost->currency) : Json()}});
  row.warnings = runs.step().warnings;
  for (const std::string& note : run.notes) row.warnings.push_back(note);
}

}  // namespace

Row answer_of(const Sweep& sweep, const Point& point) {
  Row row{.key = point.key, .values = point.values};
  const JobSource source{.file = sweep.base.file, .text = sweep.base.text, .set = point.set};
  try {
    switch (sweep.question) {
      case Question::simulate:
        simulated(sweep, source, row);
        break;
      case Question::plan:
        planned(sweep, source, row);
        break;
      case Question::goodput:
        walked(sweep, source, row);
        break;
    }
  } catch (const InputError& error) {
    row.refused = error.what();
  } catch (const ProgramError& error) {
    row.refused = error.what();
  }
  return row;
}

}  // namespace rehearse::study
