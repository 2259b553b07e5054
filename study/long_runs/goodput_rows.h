// Long runs of one job side by side: recovery policies with kinds of checkpoints. `rehearse compare
// --duration`, and the Python package.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "study/long_runs/goodput_study.h"
#include "study/progress.h"

namespace rehearse::study {

/// What to compare: names with commas between them; empty: the job's own.
struct LongRunChoices {
  std::string recovery = {}, checkpoint = {};
  std::string option = {};  // stands before the name of a choice in messages: "--"
};

struct LongRunRow {
  std::string label = {};           // "restart, sharded"
  std::optional<LongRun> run = {};  // nothing: the job cannot run so
  std::string refusal = {};         // why it cannot; empty where it can
};

/// Of a job that was loaded from `source`; `step`: how its step is predicted, with the draws of
/// failures as seeds.
LongRunOptions long_run_options(const JobSource& source, Seconds duration,
                                const StudyOptions& step);

/// A row for each policy with each kind of checkpoint. Throws InputError for a wrong name, and when
/// the job can run under none of them.
std::vector<LongRunRow> compare_long_runs(LongRuns& runs, const job::Job& job,
                                          const LongRunChoices& choices, Progress* progress);

/// `long_runs` and `cannot_run` of docs/cli.md.
nlohmann::ordered_json to_json(const std::vector<LongRunRow>& rows, const LongRuns& runs);

}  // namespace rehearse::study
