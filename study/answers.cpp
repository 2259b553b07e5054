#include "study/answers.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/files/json_text.h"
#include "engine/base/numbers/limits.h"
#include "engine/planner/adaptive.h"
#include "study/comparison.h"
#include "study/long_runs/fault_study.h"
#include "study/prediction/study_migration.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/processes.h"
#endif

namespace rehearse::study {

using Json = nlohmann::ordered_json;

std::string in_child(const std::function<std::string()>& work, const std::function<void()>& check) {
#ifdef REHEARSE_HAS_SIM
  return sim::in_processes(1, [&](int) { return work(); }, {.check = check}).front();
#else
  check();
  return work();
#endif
}

StudyOptions study_options(const Options& options) {
  const auto refuse = [](const char* what, double value, const std::string& least) {
    throw InputError(fmt::format("{}: {}: must be {}", what, value, least));
  };
  StudyOptions out{
      .fidelity = options.network, .seeds = options.seeds, .precision = options.precision};
  const int least = out.steps.warm_up + 1;
  if (options.seeds < 1) refuse("seeds", options.seeds, "at least 1");
  if (options.steps < least) refuse("steps", options.steps, fmt::format("at least {}", least));
  if (!std::isfinite(options.precision) || options.precision < 0 || options.precision > 1)
    refuse("precision", options.precision, "from 0 to 1");
  out.steps.steady = options.steps - out.steps.warm_up;
  return out;
}

Json simulate_json(const JobSource& source, const StudyOptions& options) {
  job::Job job = load(source);
  const std::optional<plan::Decision> decided = decide_plan(job, nullptr);
  StudyOptions how = options;
  if (!job.faults.trace.empty())
    how.faults = std::make_shared<const faults::Trace>(given_trace(job));
  Study study = predict(job, how);
  if (decided) add_warnings(*decided, study);
  Json out = to_json(study);
  if (const auto first = planner::warm_up_plan(job, decided ? &*decided : nullptr))
    out["migration"] = to_json(study_migration(job, *first, how.fidelity));
  check_finite(out);
  return out;
}

Json compare_json(const JobSource& source, const std::string& methods, bool fit,
                  const StudyOptions& options) {
  Json out = Json::array();
  for (const ComparedMethod& row : compare_methods(source, methods, options, fit)) {
    Json one{{"method", row.choice.label}};
    if (row.study) {
      Json& result = one["result"] = to_json(*row.study);
      result["method"] = row.choice.label;
      if (row.decided) result["choices"] = choices_json(*row.decided);
    } else {
      one["refused"] = row.refusal;
    }
    out.push_back(std::move(one));
  }
  check_finite(out);
  return out;
}

Json goodput_json(const JobSource& source, const std::string& duration,
                  const LongRunChoices& choices, const StudyOptions& options) {
  const Seconds seconds = duration_of("duration", duration, limits::long_run);
  job::Job job = load(source);
  decide_plan(job, nullptr);
  LongRuns runs(job, long_run_options(source, seconds, options));
  Json out = to_json(compare_long_runs(runs, job, choices, nullptr), runs);
  check_finite(out);
  return out;
}

Json plan_json(const JobSource& source, PlanFlags flags) {
  flags.fewer_devices = true;
  const job::Job job = load_to_plan(source);
  plan::Decision decision = decide_with_progress(job, flags);
  const std::string toml = plan_text(decision, job);
  warn_of_trace(job, decision.warnings);
  warn_of_encryption(job, decision.warnings);
  Json out = to_json(decision, job);
  out["toml"] = toml;
  check_finite(out);
  return out;
}

}  // namespace rehearse::study
