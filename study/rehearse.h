// The C++ interface of librehearse.so: reads a job, predicts its step, compares methods, and
// compares ways to recover from failures. docs/cpp.md says how to link it;
// examples/compare_methods.cpp is a whole program.
//
// The numbers are those of `rehearse simulate` and `rehearse compare`, and equal arguments give
// equal numbers. A program may call these functions as often as it likes, from one thread at a
// time: SimGrid simulates once in a process, so each simulation runs in a forked child, as many at
// a time as the machine has cores.
//
// Errors are exceptions with the text that the command prints: InputError where the job, a file
// that it names or an option is wrong; BackendError where the machine failed (a file that cannot be
// written, a simulation that crashed).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::study {

/// How the network is modelled. analytic: nothing contends. fluid and chunk: SimGrid shares links
/// among whole transfers, or among their pieces (docs/simulator.md).
enum class Fidelity : std::uint8_t { analytic, fluid, chunk };

/// What to train, where and how (docs/job.md). Copies share one value that never changes.
class Job {
 public:
  /// Reads the TOML file at `path`. `set`: "key.path=value", as after --set. Throws InputError,
  /// with file, line and key, when the job is wrong.
  static Job from_file(const std::string& path, const std::vector<std::string>& set = {});
  /// The same for text; messages call it `name`. Relative paths in it start from the working
  /// directory, as those of a file do.
  static Job from_text(const std::string& toml, const std::vector<std::string>& set = {},
                       const std::string& name = "job");

  struct Loaded;  // of the implementation
  const Loaded& loaded() const { return *loaded_; }

 private:
  explicit Job(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}
  std::shared_ptr<const Loaded> loaded_;
};

struct Options {
  Fidelity network = Fidelity::fluid;
  /// Runs with different draws of [disturb], from its seed on; one run if nothing in it is random.
  /// At least 1.
  int seeds = 5;
  /// The most steps of a run, with 5 that warm up. At least 6.
  int steps = 55;
  /// A run stops when its mean step time is known to this share of itself, with 95% confidence. 0:
  /// it runs all steps.
  double precision = 0.01;
  /// Called with a short text when the work has come further; empty: nobody listens.
  std::function<void(const std::string&)> progress = {};
};

/// Between which values a measured step lies with the probability `level`, in seconds.
struct Interval {
  double low = 0, high = 0, level = 0;
};

/// Of the fullest device of a kind, in bytes.
struct DeviceMemory {
  std::string device = {};  // name of the kind
  std::int64_t peak = 0;    // what the ranks on the device need
  std::int64_t capacity = 0, reserve = 0;
  /// `peak` by what the bytes are for: "weights", "gradients", "activations", ...
  std::map<std::string, std::int64_t> parts = {};
};

/// What work costs at the rent of the ranks' devices.
struct Cost {
  std::string currency = {};  // "USD"
  double per_hour = 0, per_step = 0, per_billion_tokens = 0;
};

/// What a long run costs, with its spare nodes.
struct RunCost {
  std::string currency = {};
  double per_hour = 0, whole = 0;
  double spares = 0;              // part of `whole` that is for spare nodes
  double per_billion_tokens = 0;  // of steps that count; 0: there is none
};

/// The prediction of one job. Means are over steady steps and all seeds.
struct Result {
  std::string method = {};
  int world_size = 0;      // ranks
  double step_s = 0;       // mean step time, seconds
  double step_ci95_s = 0;  // half-width of the 95% interval of the mean over seeds, seconds
  std::vector<double> step_by_seed_s = {};
  /// Seeds and calibration error together; nothing: not known, because the result is not
  /// calibrated or rests on a profile.
  std::optional<Interval> interval_s = {};
  double samples_per_s = 0, tokens_per_s = 0;
  std::optional<double> mfu = {};  // 0 to 1; nothing: the peak rate of a device is not known
  double bubble_fraction = 0;      // idle share of the compute lanes' time
  double exposed_comm_s = 0;       // communication that compute does not hide, seconds a step
  double sent_mean = 0, sent_max = 0, sent_total = 0;  // bytes a step: of a rank, of all ranks
  std::optional<double> joules_per_step = {};  // nothing: the power of a device is not known
  std::optional<Cost> cost = {};               // nothing: the price of a device is not known
  std::vector<DeviceMemory> memory = {};       // by kind of device
  bool calibrated = false;  // local times rest on measurements, not on assumed efficiencies
  std::vector<std::string> warnings = {};
};

/// Predicts the job's step. Where the planner chooses the plan (method.name = "adaptive" without a
/// plan file), it chooses first. Throws InputError when the job cannot be compiled or does not fit
/// into memory.
Result simulate(const Job& job, const Options& options = {});

/// A row of a comparison.
struct Compared {
  std::string label = {};             // as in the list: "1f1b@pp=2"
  std::optional<Result> result = {};  // nothing: the method cannot run the job
  std::string refusal = {};           // why it cannot; empty where it can
};

/// Predicts the job under several methods. `methods`: as after --methods of the command, such as
/// "ddp,zero3,1f1b@pp=2" or "all". A method that cannot run the job is a row with its refusal.
/// `fit`: a method that does not fit into memory gets the keys that make it fit, if they leave
/// method and batch as they are; its label then has them. Throws InputError when the job or the
/// list is wrong.
std::vector<Compared> compare(const Job& job, const std::string& methods = "all",
                              const Options& options = {}, bool fit = false);

/// What a run over weeks does when things break ([faults] of the job). Means are over all draws of
/// failures.
struct Goodput {
  double goodput = 0;                           // productive share of the time, 0 to 1
  double goodput_ci95 = 0;                      // half-width of its 95% interval over draws
  std::vector<double> goodput_by_seed = {};     // of each draw
  double step_s = 0;                            // undisturbed step time, seconds
  double productive_s = 0;                      // of the duration
  std::map<std::string, double> lost_s = {};    // seconds by cause: "detection", "rework", ...
  double interruptions = 0;                     // of the run
  double steps = 0, lost_steps = 0;             // done; done again after a failure
  std::optional<std::int64_t> save_every = {};  // steps between checkpoints; nothing: none
  std::optional<RunCost> cost = {};             // nothing: the price of a device is not known
  std::vector<std::string> notes = {};
  std::vector<std::string> warnings = {};
};

/// A row of a comparison of recoveries.
struct Recovered {
  std::string label = {};              // policy and kind of checkpoint: "restart, sharded"
  std::optional<Goodput> result = {};  // nothing: the job cannot run so
  std::string refusal = {};            // why it cannot; empty where it can
};

/// Walks the job for so long, in seconds, with the failures that it states: a row for each recovery
/// policy with each kind of checkpoint. `recovery`, `checkpoint`: names with commas between them,
/// as after the options of `rehearse compare --duration`; empty: the job's own. `options.seeds` are
/// draws of failures. Throws InputError when the job or a name is wrong, or no row can run.
std::vector<Recovered> compare_recoveries(const Job& job, double duration_s,
                                          const std::string& recovery = {},
                                          const std::string& checkpoint = {},
                                          const Options& options = {});

}  // namespace rehearse::study
