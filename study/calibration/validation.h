// Predictions beside published measurements. A set is a file (a job, or one collective), a table of
// rows that change its keys, and what others measured for each row: the seconds of a step or of the
// collective, or the bytes that a device needs (validation/sets.toml).
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/csv.h"
#include "study/calibration/interval.h"
#include "study/prediction/explain.h"
#include "study/prediction/study.h"

namespace rehearse::study {

struct ValidationRow {
  std::string name = {};
  bool calibrates = false;  // may be used to fit constants; otherwise only predicted
  double measured = 0;      // seconds, or bytes
  std::vector<std::string> overrides = {};  // of the set's file
};

/// What the rows of a set are: steps of jobs, collectives, or the memory of jobs.
enum class Measured : std::uint8_t { job, collective, memory };
constexpr auto spellings(Measured) {
  return std::to_array<const char*>({"job", "collective", "memory"});
}

struct ValidationSet {
  std::string name = {}, summary = {}, source = {}, peers = {};
  double goal = 0;        // percent
  std::string file = {};  // path
  Measured kind = Measured::job;
  std::vector<ValidationRow> rows = {};
};

/// All sets of the data folder. Throws InputError.
std::vector<ValidationSet> validation_sets();
/// The sets of these names, in this order; all of them when `names` is empty. Throws InputError
/// that names the nearest known set.
std::vector<ValidationSet> validation_sets(const std::vector<std::string>& names);

/// The rows of a table of measurements from `file`, of the column `seconds`, or of `bytes` for
/// memory. `needs_use`: it must have the column `use`; otherwise the column may be absent, and then
/// every row calibrates. Throws InputError.
std::vector<ValidationRow> read_measurements(const CsvTable& table, const std::string& file,
                                             bool needs_use, Measured kind = Measured::job);

struct Prediction {
  const ValidationRow* row = nullptr;
  double predicted = 0;            // seconds, or bytes
  double bubble = 0, exposed = 0;  // of a step: a fraction; seconds
  std::string refusal = {};        // why the row cannot be predicted; empty: it can
  std::optional<execution::Explanation> explanation = {};  // where asked for

  double error() const { return predicted / row->measured - 1; }
};

struct Validation {
  const ValidationSet* set = nullptr;
  std::vector<Prediction> rows = {};
};

/// The prediction of a step that is compared with a measured one. `jobs`: as in StudyOptions.
/// Throws InputError.
Study predict_step(const job::Job& job, Fidelity fidelity, int jobs = 0);

/// The bytes of the device that needs the most, whether or not it has them. Throws InputError.
double predict_memory(const job::Job& job);

struct ValidateOptions {
  Fidelity fidelity = Fidelity::analytic;
  std::vector<std::string> overrides = {};  // further keys of every job
  bool explained = false;                   // with an explanation of each row
  int jobs = 0;                             // rows at a time; 0: as many as the machine has cores
  std::function<void(int done)> progress = {};  // called with the number of rows predicted
};

/// Predicts every row of every set, which must outlive the result. Each row is predicted in a
/// child process, or in this one if it is explained or there is no simulator.
std::vector<Validation> validate(const std::vector<ValidationSet>& sets,
                                 const ValidateOptions& options);

/// Of the rows that are predicted and (not) used to fit.
struct Accuracy {
  int rows = 0, refused = 0;
  double mean = 0, median = 0, worst = 0, bias = 0;  // of |error|; bias: of the signed error
};
Accuracy accuracy(const Validation& validation, bool calibrates);

/// The factor that holds `level` of the rows of step times that constants were fitted to: the
/// quantile of |ln(predicted / measured)|. Empty: no such row was predicted.
std::optional<CalibrationError> fitted_error(const std::vector<Validation>& all, double level);

/// The fraction of the other rows of step times that lie inside; empty: there are none.
std::optional<double> coverage(const std::vector<Validation>& all, const CalibrationError& error);

nlohmann::ordered_json to_json(const Validation& validation);

}  // namespace rehearse::study
