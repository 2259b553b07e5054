// `rehearse calibrate`: a user's own measurements become a device, software or library file, with
// the error of rows that the fit has not seen. There are three kinds of measurements, each in a
// file of its own: step times (calibrate_steps.cpp), times of collectives (calibrate_library.cpp)
// and a profiler's trace (calibrate_trace.cpp). engine/calibration/ reads files and fits.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/calibration/fit.h"

namespace rehearse::study {

/// steps: a table of step times, as of a validation set. nccl_tests: output of nccl-tests, or a
/// table of collectives. trace: of PyTorch's profiler.
enum class Measurements : std::uint8_t { steps, nccl_tests, trace };
constexpr auto spellings(Measurements) {
  return std::to_array<const char*>({"steps", "nccl-tests", "trace"});
}

struct CalibrationQuestion {
  std::string data = {}, text = {};        // path of the measurements, and what the file holds
  std::string job = {};                    // path; what all rows of a table have in common
  std::string device = {}, software = {};  // to start from; empty: not fitted
  std::string cluster = {}, ranks = {}, move = {};  // of collectives
  std::vector<std::string> fit = {};                // keys; empty: all that the measurements show
  std::vector<std::string> overrides = {};          // "key.path=value", of every row
  int folds = 5, evaluations = 200;                 // as in calibration::Problem
  std::function<void(const std::string&)> tell = {};
};

/// One key of the file that is written.
struct CalibratedKey {
  std::string key = {};
  double at_start = 0, calibrated = 0;
  double spread = 0;      // standard error
  bool duration = false;  // seconds; otherwise a fraction
  bool fitted = false;    // otherwise `calibrated` is `at_start`, and a note says why
  std::string from = {};  // what it rests on: "12 rows"
};

struct CalibratedRow {
  std::string name = {};
  bool fitted = true;                   // otherwise only predicted
  double measured = 0;                  // seconds
  double at_start = 0, calibrated = 0;  // seconds predicted with the values of CalibratedKey
};

struct Calibration {
  Measurements kind = Measurements::steps;
  std::vector<std::pair<std::string, std::string>> facts = {};  // what was read, for people
  std::vector<CalibratedKey> keys = {};
  std::vector<CalibratedRow> rows = {};
  std::string rows_are = "rows";        // what the text calls them
  double cross_validated = 0;           // mean error of rows that a fit had not seen
  int folds = 0;                        // 0: nothing was fitted, so nothing was cross-validated
  std::vector<std::string> notes = {};  // what the measurements cannot say
  /// Files to write; empty: no key of this kind of file was fitted.
  std::string device_file = {}, software_file = {}, library_file = {};
};

/// The kind that the text looks like. Throws InputError when it looks like none.
Measurements kind_of(const std::string& text, const std::string& file);
/// Throws InputError.
Calibration calibrate(Measurements kind, const CalibrationQuestion& question);

Calibration calibrate_steps(const CalibrationQuestion& question);
Calibration calibrate_library(const CalibrationQuestion& question);
Calibration calibrate_trace(const CalibrationQuestion& question);

/// A parameter of a fit that may stay out of it.
struct Candidate {
  calibration::Parameter parameter = {};
  bool duration = false;
};
/// Those that `fit` names, all of them when it is empty. Throws InputError that names the nearest.
std::vector<Candidate> chosen(const std::vector<Candidate>& all,
                              const std::vector<std::string>& fit);
/// Seconds of a row.
struct RowPredictor {
  /// With these values of the candidates.
  std::function<double(std::size_t row, std::span<const double> values)> seconds = {};
  bool table = true;  // the measured seconds are a column that a person filled
  /// At the full rates of devices and links; empty: not known.
  std::function<double(std::size_t row)> least = {};
  /// With `times` the bytes, at the start; empty: the rows have no sizes that a person wrote.
  std::function<double(std::size_t row, double times)> resized = {};
};
/// Fits `candidates` to the measured rows of `out` that are marked fitted, and writes keys, notes,
/// the rows' predictions and the errors to `out`. Returns the value of each candidate. Throws
/// InputError when --fit names more parameters than the rows can determine, and when the rows look
/// like another unit.
std::vector<double> fit_rows(const CalibrationQuestion& question,
                             const std::vector<Candidate>& candidates,
                             const RowPredictor& predictor, Calibration& out);
/// "16 rows of bert.csv: mean error 3.1%, cross-validated 3.9%": for `source` of a written file.
std::string source_text(const CalibrationQuestion& question, const Calibration& calibration);

/// The mean of |predicted / measured - 1| over the rows that are (not) fitted, with the calibrated
/// values or those at the start; 0 when there are none.
double mean_error(const Calibration& calibration, bool fitted, bool calibrated);
nlohmann::ordered_json to_json(const Calibration& calibration);

}  // namespace rehearse::study
