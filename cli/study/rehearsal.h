// "Rehearsed before run": what was predicted for a plan, beside its file (docs/plans.md).
// `simulate` writes it, `train --rehearsed` refuses to run what it does not speak for, and adds
// what was measured.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/study/study.h"
#include "engine/job/job.h"

namespace rehearse::cli {

/// Mean and half-width of the 95% interval, seconds.
struct StepTime {
  double mean = 0, ci95 = 0;
};

/// One of the methods that a plan has to be at least as fast as.
struct Baseline {
  std::string method = {};
  std::optional<StepTime> step_time = {};
  std::vector<std::string> set = {};  // what made it fit, as --set takes it
  std::string cannot_run = {};        // why there is no time
};

/// A real run of the plan.
struct RealRun {
  StepTime step_time = {};
  std::int64_t steps = 0;
  double ratio = 0;  // measured / predicted
};

struct Rehearsal {
  static constexpr int version = 1;
  std::uint64_t model_hash = 0, cluster_hash = 0, profile_hash = 0, plan_hash = 0;
  std::string fidelity = {};
  std::vector<std::uint64_t> seeds = {};
  std::optional<StepTime> step_time = {};                // none: it does not fit into memory
  std::map<std::string, std::int64_t> peak_memory = {};  // bytes by device
  std::map<std::string, std::int64_t> over_memory =
      {};  // what plans may use of the devices that are too small
  std::vector<Baseline> baselines = {};
  std::vector<RealRun> runs = {};
};

/// "plan.toml" -> "plan.rehearsal.json".
std::string rehearsal_path(const std::string& plan_file);

/// What of the job's plan does not fit into its devices' memory is in over_memory; no simulation
/// yet.
Rehearsal begin_rehearsal(const job::Job& job);
/// The rehearsal with the plan's own simulation, and those of DDP, ZeRO-2 and 1F1B: on the plan's
/// devices, with its batch, precision and optimizer, under the same seeds; one that lacks memory is
/// tried with the first change that makes it fit. `path` and `set`: the job as the command line
/// names it. `traces`: a prefix of files METHOD.json that get their Chrome traces; empty: none.
void finish_rehearsal(Rehearsal& rehearsal, const job::Job& job, const Study& study,
                      const StudyOptions& options, const std::string& path,
                      const std::vector<std::string>& set, const std::string& traces = {});
/// Beside the plan, complete or not at all. Throws BackendError.
void write_rehearsal(const Rehearsal& rehearsal, const job::Job& job);
/// The fastest of those that can run; null when none can.
const Baseline* best_baseline(const Rehearsal& rehearsal);
/// For people, one line each.
std::string describe(const Rehearsal& rehearsal);

/// Throws InputError when the job has no plan, or its rehearsal is missing, stale, over memory, or
/// slower than the best feasible baseline (disjoint intervals); says which.
void check_rehearsal(const job::Job& job);
/// Adds a run to the file. Throws BackendError when it cannot be written.
void add_measured(const job::Job& job, const std::vector<double>& step_times);

std::string to_json(const Rehearsal& rehearsal);
/// Throws InputError on anything that `to_json` would not have written.
Rehearsal parse_rehearsal(const std::string& text, const std::string& file);

}  // namespace rehearse::cli
