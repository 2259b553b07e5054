// A rehearsal is the prediction for a plan and for its baselines, in a JSON file beside the plan
// file (docs/plans.md). `rehearse simulate` writes it. `rehearse train --rehearsed` refuses to run
// a plan whose rehearsal is missing, stale or bad, and adds the measured step time to the file.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "study/prediction/study.h"

namespace rehearse::study {

/// Mean and half-width of the 95% interval, in seconds.
struct StepTime {
  double mean = 0, ci95 = 0;
};

/// The prediction for one of the methods that the plan is compared with.
struct Baseline {
  std::string method = {};
  std::optional<StepTime> step_time = {};  // none: the method cannot run the job
  std::vector<std::string> set = {};       // --set options that made it fit into memory
  std::string cannot_run = {};             // why there is no step time
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
  std::optional<StepTime> step_time = {};                // none: the plan does not fit into memory
  std::map<std::string, std::int64_t> peak_memory = {};  // bytes, by device name
  /// The usable bytes of the devices on which the plan does not fit, by device name.
  std::map<std::string, std::int64_t> over_memory = {};
  std::vector<Baseline> baselines = {};
  std::vector<RealRun> runs = {};
};

/// "plan.toml" -> "plan.rehearsal.json".
std::string rehearsal_path(const std::string& plan_file);

/// A rehearsal with the hashes and the memory of the job's plan, and without a simulation. Devices
/// on which the plan does not fit are in over_memory. Throws InputError.
Rehearsal begin_rehearsal(const job::Job& job);
/// Adds the plan's own simulation (`study`), and simulates the baselines DDP, ZeRO-2 and 1F1B: on
/// the plan's devices, with its global batch, precision and optimizer, under the same seeds. A
/// baseline that does not fit into memory is tried again with the first change that makes it fit.
/// `path` and `set`: the job as on the command line. `traces`: the Chrome trace of a baseline is
/// written to this prefix + "METHOD.json"; empty: no traces.
void finish_rehearsal(Rehearsal& rehearsal, const job::Job& job, const Study& study,
                      const StudyOptions& options, const std::string& path,
                      const std::vector<std::string>& set, const std::string& traces = {});
/// Writes the rehearsal to its file, completely or not at all. Throws BackendError.
void write_rehearsal(const Rehearsal& rehearsal, const job::Job& job);
/// The fastest baseline that can run; null: none can.
const Baseline* best_baseline(const Rehearsal& rehearsal);
/// Text with one line per baseline.
std::string describe(const Rehearsal& rehearsal);

/// Throws InputError when the job has no plan file, or when the plan's rehearsal is missing, stale,
/// over memory, or slower than the best baseline (with disjoint intervals). The message says which.
void check_rehearsal(const job::Job& job);
/// Adds a real run with these step times (seconds) to the rehearsal's file. Throws BackendError
/// when the file cannot be written.
void add_measured(const job::Job& job, const std::vector<double>& step_times);

std::string to_json(const Rehearsal& rehearsal);
/// Throws InputError when the text is not exactly what `to_json` writes for a rehearsal. `file`:
/// name for messages.
Rehearsal parse_rehearsal(const std::string& text, const std::string& file);

}  // namespace rehearse::study
