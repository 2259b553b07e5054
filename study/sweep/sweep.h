// A sweep: many variants of one job, and for each of them what `rehearse simulate`, `rehearse plan`
// or `rehearse simulate --duration` answers.
// docs/sweep.md describes the file SWEEP.toml.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "study/load.h"
#include "study/prediction/study.h"

namespace rehearse::study {

/// A value of an axis: how tables show it, and the keys of the job that it sets.
struct AxisValue {
  nlohmann::ordered_json label = {};
  std::vector<std::string> set = {};  // "method.pp=2"
  std::string method = {};            // of the axis `methods`: as after --methods; else empty
  std::int64_t devices = 0;           // of the axis `devices` of a scaling; else 0
};

struct Axis {
  std::string name = {};
  std::vector<AxisValue> values = {};
};

/// What is asked about each point. goodput: a long run with failures.
enum class Question { simulate, plan, goodput };
constexpr auto spellings(Question) {
  return std::to_array<const char*>({"simulate", "plan", "goodput"});
}

/// On more devices, the batch stays the same (strong) or grows with them (weak).
enum class Scaling { strong, weak };
constexpr auto spellings(Scaling) { return std::to_array<const char*>({"strong", "weak"}); }

/// All combinations of the axes' values (together), or the job and each value by itself (alone).
enum class Vary { together, alone };
constexpr auto spellings(Vary) { return std::to_array<const char*>({"together", "alone"}); }

struct Sweep {
  std::string file = {};
  JobSource base = {};  // with its text
  Question question = Question::simulate;
  Seconds duration = {};  // of a long run
  StudyOptions options = {};
  Vary vary = Vary::together;
  std::optional<Scaling> scaling = {};  // then the first axis is `devices`, which rises
  std::vector<Axis> axes = {};
  std::vector<std::string> where = {};
};

/// One combination of values.
struct Point {
  nlohmann::ordered_json values = {};  // by name of axis; null: as the job states it
  std::vector<std::string> set = {};   // what makes the point's job of the base job
  /// Of the job, the data files, the options and this build: what decides the result.
  std::string key = {};
  std::uint64_t deal = 0;  // of the job and the options alone: equal on all machines
};

/// A TOML value as JSON; what is no number, truth, plain string or list of these is its text.
nlohmann::ordered_json json_of(const std::string& toml);
/// Reads SWEEP.toml. `set`: holds for all points, unless an axis sets the same key. Throws
/// InputError.
Sweep read_sweep(const std::string& path, const std::vector<std::string>& set = {});
/// The sweep of a job that is given apart from it. `toml`: SWEEP.toml without the key `job`;
/// messages call it `name`.
Sweep sweep_of_job(const JobSource& base, const std::string& toml, const std::string& name);
/// The points that satisfy the conditions: all combinations, the last axis first to change; or the
/// job, then each value of each axis. Throws InputError when there is none, or when a condition is
/// wrong.
std::vector<Point> points_of(const Sweep& sweep);

/// What the first of the points `key` gave: one line of the results. `refused`: the job cannot run,
/// and why. `failed`: the machine failed; it is tried again. `warnings`: as `rehearse simulate`
/// gives them with the result.
struct Row {
  std::string key = {};
  nlohmann::ordered_json values = {}, metrics = {}, warnings = {};
  std::string refused = {}, failed = {};
};
using Rows = std::map<std::string, Row>;  // by key

/// A number of a result by which points are ranked.
struct Metric {
  const char* name;
  bool most = false;  // the largest is the best
};
/// The first one ranks unless the user says otherwise.
const std::vector<Metric>& metrics(Question question);

/// The metrics of these names, without any the first one. `flag`: what gave the names. Throws
/// InputError.
std::vector<Metric> metrics_named(Question question, const std::vector<std::string>& names,
                                  const std::string& flag);

/// The figures of a result by the metrics; nothing: it cannot run, or lacks one of them.
std::optional<std::vector<double>> figures_of(const Row& row, const std::vector<Metric>& by);
/// Throws InputError when the results are to be compared by costs in several currencies.
void check_currency(const std::vector<Row>& results, const std::vector<Metric>& by);
/// Places of the results that have the metric, the best first. Throws as check_currency.
std::vector<std::size_t> ranking(const std::vector<Row>& results, const Metric& by);
/// The frontier: the results to which no other is preferable, which is at least as good by every
/// one of the metrics and better by one. Places in `results`, the best by the first metric first.
/// A result that lacks one of the metrics is not part of it. Throws as check_currency.
std::vector<std::size_t> frontier(const std::vector<Row>& results, const std::vector<Metric>& by);

/// The lines of all files `results*.jsonl` in the folder. A last line that is not complete counts
/// as not written. Throws InputError with file and line for any other line that is no result; the
/// file is left as it is.
Rows read_rows(const std::string& folder);
nlohmann::ordered_json to_json(const Row& row);
/// The results by point; an unknown one has no figures. In a scaling the figures have `efficiency`:
/// samples per second and device, as a share of those of the point that has the fewest devices and
/// otherwise the same values.
std::vector<Row> results_of(const Sweep& sweep, const std::vector<Point>& points, const Rows& rows);
/// One object a result.
nlohmann::ordered_json to_json(const std::vector<Row>& results);

/// From 1 to `of`: which machine of so many computes the point.
int shard_of(const Point& point, int of);

struct Work {
  int jobs = 0;             // worker processes; 0: as many as the machine has cores
  int shard = 1, of = 1;    // only the points dealt to this shard
  std::string folder = {};  // of the results; created if need be
  Progress* progress = nullptr;
  std::function<void()> check = {};  // sim::ProcessOptions::check
};
/// Computes the points that `rows` lacks, and adds them. Each is appended to the folder's file as
/// soon as it is known. Throws BackendError when the file cannot be written, InputError when
/// another sweep writes it.
void compute(const Sweep& sweep, const std::vector<Point>& points, const Work& work, Rows& rows);

/// One line a result.
std::string csv_of(const Sweep& sweep, const std::vector<Row>& results);

}  // namespace rehearse::study
