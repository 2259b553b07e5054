// The prediction of one job: compiles and links its program, checks the memory, and runs the
// program over several seeds. `simulate`, each row of `compare` and each baseline of a rehearsal
// are such studies.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/price.h"
#include "engine/execution/measure/metrics.h"
#include "engine/execution/trace/chrome_trace.h"
#include "engine/faults/event.h"
#include "engine/job/job.h"
#include "engine/planner/memory/needs.h"
#include "study/prediction/collectives_used.h"
#include "study/prediction/saving.h"
#include "study/prediction/subject.h"
#include "study/rehearse.h"

namespace rehearse::study {

class Progress;
struct FaultStudy;

constexpr auto spellings(Fidelity) {
  return std::to_array<const char*>({"analytic", "fluid", "chunk"});
}

struct StudyOptions {
  Fidelity fidelity = Fidelity::fluid;
  int seeds = 5;                // number of runs; one run if nothing in [disturb] is random
  execution::Steps steps = {};  // the most steps of each run
  /// Runs stop when they have shown enough (docs/simulator.md): at the first period of their steps
  /// where no step is random, else when their mean step time is known, with 95% confidence, to this
  /// share of itself. 0: they run all steps.
  double precision = 0.01;
  /// File for a Chrome trace of the first seed's first two steady steps; empty: none.
  std::string trace = {};
  std::set<std::pair<Id, Id>> critical = {};  // TraceSelection::critical of that trace
  /// The steps are also run with these events, and the trace is of that run, from the step of the
  /// first event on; null: nothing breaks.
  std::shared_ptr<const faults::Trace> faults = nullptr;
  Progress* progress = nullptr;  // null: nobody listens
  int jobs = 0;                  // seeds that run at a time; 0: as many as the machine has cores
};

/// How many steps a study ran, with the warm-up.
struct StepsRun {
  std::vector<int> by_seed = {};
  int most = 0;          // asked for
  int period = 0;        // the longest period of steps that ended a run; 0: none did
  double precision = 0;  // that the runs were to reach; 0: not asked, or nothing is random
};

struct Study {
  std::string method = {};
  int stated_zero = 0;  // method.zero where the method does not imply it; 0: it does, or none
  Subject subject = {};
  int world_size = 0, servers = 0;
  std::vector<program::Axis> mesh = {};
  std::vector<std::string> devices = {};  // device names, by rank
  std::vector<int> shares = {};           // by replica: samples of a micro-batch; empty: equal
  std::vector<std::uint64_t> seeds = {};
  Fidelity fidelity = Fidelity::fluid;
  StepsRun steps = {};
  bool calibrated = false;  // all local times come from a profile, or from a calibrated device and
                            // a software that was measured with jobs like this one
  /// Seconds between which a measured step lies with the probability `interval_level`, seeds and
  /// calibration error together; nullopt: not known, since the result is not calibrated or rests on
  /// a profile.
  std::optional<std::pair<double, double>> interval = {};
  double interval_level = 0;
  execution::Summary summary = {};
  std::vector<CollectivesUsed> collectives = {};
  /// Of a method with a coordinator (Horovod): its cycle, and how it fuses gradients.
  struct Fusion {
    double cycle_s = 0, buffer_bytes = 0;
    std::size_t cycles = 0;  // of backward that end with gradients to sum
  };
  std::optional<Fusion> fusion = {};
  std::optional<Seconds> deadline = {};  // of a round; summary.in_time says who met it
  int last_phase = 0;  // the figures are of steps from this one on; earlier ones do other work
  std::optional<Saving> saving = {};             // checkpoints behind training; nothing: none
  std::vector<planner::DeviceNeed> memory = {};  // by kind of device
  std::vector<planner::HostNeed> hosts = {};     // by node that holds anything
  std::vector<std::string> idle_unknown = {};    // kinds of device with unknown idle power (0 W)
  cluster::Rent rent = {};                       // of the ranks' devices
  std::uint64_t program_hash = 0, cluster_hash = 0;
  std::vector<std::string> warnings = {};
  /// Seconds of wall clock on this machine. Not part of to_json, which is deterministic.
  double compile_s = 0, link_s = 0, costs_s = 0, run_s = 0;
  std::shared_ptr<const FaultStudy> faults = nullptr;  // null: no trace was replayed
};

/// Predicts the job. Throws InputError when the job cannot be compiled, does not fit into memory or
/// gives a number that is not finite, and when the level needs SimGrid and this build has none.
Study predict(const job::Job& job, const StudyOptions& options);
/// What software::Measured asks about a job.
software::Measured::Job measured_job(const job::Job& job);
/// Bytes of the device that needs the most.
std::int64_t peak_memory(const Study& study);
/// What the fullest host holds; null: no host holds anything.
const planner::HostNeed* fullest_host(const Study& study);

/// Nothing: the rent is not known.
std::optional<Cost> cost_of(const Study& study);

/// The JSON of `rehearse simulate`, documented in docs/cli.md. The same job, seeds and fidelity
/// give the same bytes.
nlohmann::ordered_json to_json(const Study& study);
nlohmann::ordered_json timings_json(const Study& study);

/// "0.812 s +- 0.004 (95%, 5 seeds)".
std::string step_time_text(const Study& study);
/// The least and the most: "11 to 15"; "11" when they are equal. There must be a value.
std::string range_text(const std::vector<int>& values);
/// "11 of 55 run by each seed, for a mean within 1%".
std::string steps_text(const StepsRun& steps);
/// "0.71 s to 0.93 s (90%, with calibration error)"; empty: the interval is not known.
std::string interval_text(const Study& study);
/// "31.2 kJ a step, 975 J a rank, 61 J a sample"; empty: the energy is not known.
std::string energy_text(const Study& study);
/// "31.92 USD an hour, 0.0071 USD a step, 0.42 USD a billion tokens", and the prices that this
/// rests on, or which device has none; empty: no price is known.
std::string cost_text(const Study& study);
/// "0.0071 USD".
std::string money_text(double amount, const std::string& currency);
/// "pp 4 x dp 8"; without axes of size 1.
std::string mesh_text(const Study& study);

}  // namespace rehearse::study
