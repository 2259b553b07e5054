#include "study/rehearse.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/duration.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "study/answers.h"
#include "study/comparison.h"
#include "study/load.h"
#include "study/long_runs/fault_study.h"
#include "study/long_runs/goodput_rows.h"
#include "study/planning/decision.h"
#include "study/prediction/study.h"
#include "study/progress.h"

namespace rehearse::study {

struct Job::Loaded {
  JobSource source = {};
  job::Job job = {};
};

namespace {

/// Hands what a study says to the caller's function.
class Listener : public Progress {
 public:
  explicit Listener(const Options& options) : hear_(options.progress) {}
  using Progress::say;
  void say(const std::string& /*live*/, const std::string& line) override {
    if (hear_) hear_(line);
  }

 private:
  const std::function<void(const std::string&)>& hear_;
};

Result result_of(const Study& s) {
  const execution::Summary& m = s.summary;
  Result out{.method = s.method,
             .world_size = s.world_size,
             .step_s = m.step_time.mean,
             .step_ci95_s = m.step_time.ci95,
             .step_by_seed_s = m.step_time.values,
             .samples_per_s = m.samples_per_s,
             .tokens_per_s = m.tokens_per_s,
             .bubble_fraction = m.bubble_fraction,
             .exposed_comm_s = m.exposed_comm_s,
             .sent_mean = m.bytes_sent_mean,
             .sent_max = m.bytes_sent_max,
             .sent_total = m.bytes_per_step,
             .calibrated = s.calibrated,
             .warnings = s.warnings};
  if (s.interval)
    out.interval_s = {
        .low = s.interval->first, .high = s.interval->second, .level = s.interval_level};
  if (m.mfu > 0) out.mfu = m.mfu;
  if (m.joules_per_step > 0) out.joules_per_step = m.joules_per_step;
  out.cost = cost_of(s);
  for (const planner::DeviceNeed& need : s.memory) {
    DeviceMemory& one = out.memory.emplace_back(
        DeviceMemory{need.kind, need.need, need.capacity, need.reserve, {}});
    for (std::size_t p = 0; p < need.parts.size(); ++p)
      one.parts.emplace(name_of(static_cast<link::Part>(p)), need.parts[p]);
  }
  return out;
}

Goodput goodput_of(const LongRun& run, const Study& step) {
  const goodput::Summary& m = run.summary;
  Goodput out{.goodput = m.goodput.mean,
              .goodput_ci95 = m.goodput.ci95,
              .goodput_by_seed = m.goodput.values,
              .step_s = run.step.value,
              .productive_s = m.productive,
              .interruptions = m.interruptions,
              .steps = m.steps,
              .lost_steps = m.lost_steps,
              .notes = run.notes,
              .warnings = step.warnings};
  for (std::size_t cause = 0; cause < goodput::losses; ++cause)
    out.lost_s.emplace(spellings(goodput::Loss{})[cause], m.lost[cause]);
  if (run.setting.save_every > 0) out.save_every = run.setting.save_every;
  out.cost = cost_of(run, step);
  return out;
}

std::shared_ptr<const Job::Loaded> read(JobSource source) {
  job::Job job = load(source);
  return std::make_shared<const Job::Loaded>(std::move(source), std::move(job));
}

}  // namespace

Job Job::from_file(const std::string& path, const std::vector<std::string>& set) {
  return Job(read({.file = path, .set = set}));
}

Job Job::from_text(const std::string& toml, const std::vector<std::string>& set,
                   const std::string& name) {
  return Job(read({.file = name, .text = toml, .set = set}));
}

Result simulate(const Job& job, const Options& options) {
  Listener listener(options);
  StudyOptions how = study_options(options);
  how.progress = &listener;
  job::Job planned = job.loaded().job;
  const std::optional<plan::Decision> decided = decide_plan(planned, &listener);
  Study study = predict(planned, how);
  if (decided) add_warnings(*decided, study);
  return result_of(study);
}

std::vector<Compared> compare(const Job& job, const std::string& methods, const Options& options,
                              bool fit) {
  Listener listener(options);
  StudyOptions how = study_options(options);
  how.progress = &listener;
  std::vector<Compared> out;
  for (const ComparedMethod& row : compare_methods(job.loaded().source, methods, how, fit)) {
    Compared& one = out.emplace_back(Compared{.label = row.choice.label, .refusal = row.refusal});
    if (row.study) one.result = result_of(*row.study);
  }
  return out;
}

std::vector<Recovered> compare_recoveries(const Job& job, double duration_s,
                                          const std::string& recovery,
                                          const std::string& checkpoint, const Options& options) {
  Listener listener(options);
  StudyOptions how = study_options(options);
  how.progress = &listener;
  const Seconds duration =
      duration_of("duration", fmt::format("{}s", duration_s), limits::long_run);
  job::Job planned = job.loaded().job;
  decide_plan(planned, &listener);
  LongRuns runs(planned, long_run_options(job.loaded().source, duration, how));
  std::vector<Recovered> out;
  for (const LongRunRow& row : compare_long_runs(
           runs, planned, {.recovery = recovery, .checkpoint = checkpoint}, &listener)) {
    Recovered& one = out.emplace_back(Recovered{.label = row.label, .refusal = row.refusal});
    if (row.run) one.result = goodput_of(*row.run, runs.step());
  }
  return out;
}

}  // namespace rehearse::study
