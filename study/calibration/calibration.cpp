#include "study/calibration/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/files/csv.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/calibration/file_form.h"
#include "study/calibration/calibration_files.h"
#include "study/calibration/calibration_units.h"
#include "study/calibration/step_log.h"

namespace rehearse::study {

namespace {

constexpr const char* formats_read =
    "a CSV table with the columns row and seconds, a log in JSON Lines with the time of each step, "
    "output of nccl-tests, and a trace of PyTorch's profiler (docs/cli.md, calibrate)";

/// Throws InputError when a file of this form cannot hold measurements of this kind. A trace says
/// so itself.
void refuse_other_form(Measurements kind, const CalibrationQuestion& question) {
  if (kind == Measurements::trace) return;
  const calibration::FileForm found = calibration::form_of(question.text);
  const bool log = found.form == calibration::Form::nccl_output;
  if (found.form == calibration::Form::table || (log && kind == Measurements::nccl_tests)) return;
  throw InputError(fmt::format(
      "{}: holds no {}: it is {}; {}", question.data,
      kind == Measurements::steps
          ? "step times, which are a CSV table with the columns row and seconds or a log in JSON "
            "Lines"
          : "times of collectives, which are output of nccl-tests or a CSV table with the columns "
            "row, seconds and collective.bytes",
      found.what, log ? "leave out --kind" : "--kind says what a file is, and may be left out"));
}

}  // namespace

Measurements kind_of(const std::string& text, const std::string& file) {
  if (const std::size_t first = text.find_first_not_of(" \t\r\n");
      first != std::string::npos && text[first] == '{')
    return is_step_log(text) ? Measurements::steps : Measurements::trace;
  const calibration::FileForm found = calibration::form_of(text);
  if (found.form == calibration::Form::nccl_output) return Measurements::nccl_tests;
  if (found.form == calibration::Form::table) {
    const CsvTable table = parse_csv(text, file);
    const bool collective =
        std::any_of(table.columns.begin(), table.columns.end(),
                    [](const std::string& column) { return column.starts_with("collective."); });
    if (table.column("seconds") < table.columns.size())
      return collective ? Measurements::nccl_tests : Measurements::steps;
  }
  throw InputError(fmt::format("{}: looks like no measurements: it is {}; calibrate reads {}", file,
                               found.what, formats_read));
}

Calibration calibrate(Measurements kind, const CalibrationQuestion& asked) {
  CalibrationQuestion question = asked;
  if (kind == Measurements::steps && is_step_log(asked.text)) {
    if (asked.job.empty())
      throw InputError(fmt::format(
          "{}: a log does not say what was run: --job JOB.toml does, with `--set` for other keys",
          asked.data));
    question.text = step_table(asked.text, asked.data);
  }
  refuse_other_form(kind, question);
  Calibration out;
  switch (kind) {
    case Measurements::steps:
      out = calibrate_steps(question);
      break;
    case Measurements::nccl_tests:
      out = calibrate_library(question);
      break;
    case Measurements::trace:
      out = calibrate_trace(question);
      break;
  }
  out.kind = kind;
  return out;
}

std::vector<Candidate> chosen(const std::vector<Candidate>& all,
                              const std::vector<std::string>& fit) {
  if (fit.empty()) return all;
  std::vector<std::string> known;
  for (const Candidate& one : all) known.push_back(one.parameter.name);
  std::vector<Candidate> out;
  for (const std::string& key : fit) {
    const auto at = std::find(known.begin(), known.end(), key);
    if (at == known.end())
      throw InputError(fmt::format("--fit: \"{}\" cannot be fitted here; {}", key,
                                   hint_and_all(key, known, "these can")));
    const Candidate& one = all[std::size_t(at - known.begin())];
    if (std::none_of(out.begin(), out.end(), [&](const Candidate& other) {
          return other.parameter.name == one.parameter.name;
        }))
      out.push_back(one);
  }
  return out;
}

std::vector<double> fit_rows(const CalibrationQuestion& question,
                             const std::vector<Candidate>& candidates,
                             const RowPredictor& predictor, Calibration& out) {
  const auto& predict = predictor.seconds;
  calibration::Problem problem{.folds = question.folds, .evaluations = question.evaluations};
  std::vector<std::size_t> fitted;  // rows
  for (std::size_t r = 0; r < out.rows.size(); ++r)
    if (out.rows[r].fitted) {
      fitted.push_back(r);
      problem.measured.push_back(out.rows[r].measured);
    }
  if (!question.fit.empty() && fitted.size() < candidates.size() + 1)
    throw InputError(fmt::format(
        "--fit names {} parameters, and {} has {} {} to fit to; fit at most {}: each needs a row, "
        "and cross-validation one more",
        candidates.size(), question.data, fitted.size(), out.rows_are,
        fitted.empty() ? 0 : fitted.size() - 1));
  std::vector<double> values;
  for (const Candidate& one : candidates) {
    problem.parameters.push_back(one.parameter);
    values.push_back(one.parameter.start);
  }
  if (question.tell) problem.tell = question.tell;
  for (std::size_t r = 0; r < out.rows.size(); ++r) out.rows[r].at_start = predict(r, values);
  doubt_units(question, predictor, out);
  problem.predict = [&](std::size_t row, std::span<const double> at) {
    return predict(fitted[row], at);
  };
  calibration::Fit fit;
  try {
    fit = calibration::fit(problem);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", question.data, error.what()));
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const calibration::Estimate& one = fit.estimates[i];
    if (one.fitted) values[i] = rounded(one.value);
    out.keys.push_back(
        {.key = candidates[i].parameter.name,
         .at_start = candidates[i].parameter.start,
         .calibrated = values[i],
         .spread = one.spread,
         .duration = candidates[i].duration,
         .fitted = one.fitted,
         .from = one.fitted ? fmt::format("{} {}", fitted.size(), out.rows_are) : std::string()});
  }
  for (std::size_t r = 0; r < out.rows.size(); ++r) out.rows[r].calibrated = predict(r, values);
  const std::vector<std::string> notes = calibration::notes(problem, fit, out.rows_are);
  out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  if (std::any_of(fit.estimates.begin(), fit.estimates.end(),
                  [](const calibration::Estimate& one) { return one.fitted; })) {
    out.folds = fit.folds;
    out.cross_validated = fit.cross_validated;
  }
  return values;
}

double mean_error(const Calibration& calibration, bool fitted, bool calibrated) {
  std::vector<double> predicted, measured;
  for (const CalibratedRow& row : calibration.rows) {
    if (row.fitted != fitted) continue;
    predicted.push_back(calibrated ? row.calibrated : row.at_start);
    measured.push_back(row.measured);
  }
  return predicted.empty() ? 0 : calibration::mean_error(predicted, measured);
}

std::string source_text(const CalibrationQuestion& question, const Calibration& calibration) {
  const auto rows = std::count_if(calibration.rows.begin(), calibration.rows.end(),
                                  [](const CalibratedRow& row) { return row.fitted; });
  return fmt::format("rehearse calibrate, {} {} of {}: mean error {}, cross-validated {}", rows,
                     calibration.rows_are, std::filesystem::path(question.data).filename().string(),
                     percent(mean_error(calibration, true, true), 1),
                     percent(calibration.cross_validated, 1));
}

nlohmann::ordered_json to_json(const Calibration& c) {
  using Json = nlohmann::ordered_json;
  Json keys = Json::array(), rows = Json::array();
  for (const CalibratedKey& key : c.keys)
    keys.push_back({{"key", key.key},
                    {"before", key.at_start},
                    {"after", key.calibrated},
                    {"standard_error", key.spread},
                    {"unit", key.duration ? "s" : ""},
                    {"fitted", key.fitted},
                    {"from", key.from}});
  for (const CalibratedRow& row : c.rows)
    rows.push_back({{"row", row.name},
                    {"use", row.fitted ? "calibrate" : "check"},
                    {"measured_s", row.measured},
                    {"before_s", row.at_start},
                    {"after_s", row.calibrated}});
  Json facts = Json::object();
  for (const auto& [name, value] : c.facts) facts[name] = value;
  Json out{{"kind", name_of(c.kind)}, {"facts", std::move(facts)}, {"keys", std::move(keys)}};
  if (!c.rows.empty())
    out["errors"] = {{"before", mean_error(c, true, false)},
                     {"fitted", mean_error(c, true, true)},
                     {"cross_validated", c.folds > 0 ? Json(c.cross_validated) : Json()},
                     {"folds", c.folds},
                     {"check_before", mean_error(c, false, false)},
                     {"check_after", mean_error(c, false, true)}};
  out["notes"] = c.notes;
  out["rows"] = std::move(rows);
  return out;
}

}  // namespace rehearse::study
