#include "study/calibration/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/numbers/median.h"
#include "engine/base/units.h"
#include "engine/costs/network/ping_pong.h"
#include "engine/planner/memory/linked_program.h"
#include "study/load.h"
#include "study/parts/collective_study.h"
#include "study/planning/decision.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/processes.h"
#endif

namespace rehearse::study {
namespace {

/// What was measured: a positive number of seconds, or of bytes with a unit.
double measured(const CsvTable& table, const std::string& file, std::size_t row, Measured kind) {
  const bool bytes = kind == Measured::memory;
  const char* column = bytes ? "bytes" : "seconds";
  const std::string& text = table.rows[row][table.column(column)];
  try {
    std::size_t end = text.size();
    const double value = bytes ? parse_bytes(text).value : std::stod(text, &end);
    if (end == text.size() && value > 0 && std::isfinite(value)) return value;
  } catch (const std::exception&) {
  }
  throw InputError(fmt::format("{}: row {}: {} = \"{}\" must be {}", file, row + 1, column, text,
                               bytes ? "a positive size, as in 66.5GiB" : "a positive number"));
}

}  // namespace

std::vector<ValidationRow> read_measurements(const CsvTable& table, const std::string& file,
                                             bool needs_use, Measured kind) {
  const bool states_use = needs_use || table.column("use") != table.columns.size();
  for (const char* needed : {"row", "use", kind == Measured::memory ? "bytes" : "seconds"})
    if (table.column(needed) == table.columns.size() &&
        (states_use || needed != std::string("use")))
      throw InputError(fmt::format("{}:1: no column \"{}\"; the columns are {}", file, needed,
                                   fmt::join(table.columns, ", ")));
  std::vector<ValidationRow> out;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const std::vector<std::string>& fields = table.rows[r];
    const std::string use = states_use ? fields[table.column("use")] : "calibrate";
    if (use != "calibrate" && use != "check")
      throw InputError(
          fmt::format("{}: row {}: use = \"{}\" must be calibrate or check", file, r + 1, use));
    ValidationRow& row = out.emplace_back();
    row.name = fields[table.column("row")];
    row.calibrates = use == "calibrate";
    row.measured = measured(table, file, r, kind);
    for (std::size_t c = 0; c < fields.size(); ++c)
      if (table.columns[c].find('.') != std::string::npos)
        row.overrides.push_back(table.columns[c] + "=" + fields[c]);
  }
  return out;
}

std::vector<ValidationSet> validation_sets() {
  const std::filesystem::path folder = data_dir() / "validation";
  const Config file = Config::load((folder / "sets.toml").string());
  std::vector<ValidationSet> out;
  for (const Config& c : file.sections("set")) {
    ValidationSet& set = out.emplace_back();
    set.name = c.text("name", std::nullopt);
    set.summary = c.text("summary", std::nullopt);
    set.source = c.text("source", std::nullopt);
    set.peers = c.text("peers", "");
    set.goal = c.number("goal", 0, between(0, 100));
    set.file = (folder / (set.name + ".toml")).string();
    set.kind = *from_name<Measured>(c.text("kind", "job", names_of<Measured>()));
    const std::string rows = (folder / (set.name + ".csv")).string();
    set.rows = read_measurements(load_csv(rows), rows, true, set.kind);
  }
  file.finish();
  return out;
}

std::vector<ValidationSet> validation_sets(const std::vector<std::string>& names) {
  std::vector<ValidationSet> all = validation_sets(), out;
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const ValidationSet& set : all) known.push_back(set.name);
  for (const std::string& name : names) {
    const auto at = std::find(known.begin(), known.end(), name);
    if (at == known.end())
      throw InputError(
          fmt::format("validation set \"{}\" is not known; {}", name, hint_and_all(name, known)));
    out.push_back(all[std::size_t(at - known.begin())]);
  }
  return out;
}

Study predict_step(const job::Job& job, Fidelity fidelity, int jobs) {
  return predict(
      job, {.fidelity = fidelity, .seeds = 1, .steps = {.warm_up = 2, .steady = 3}, .jobs = jobs});
}

double predict_memory(const job::Job& job) {
  const link::LinkedProgram linked = planner::linked_program(job);
  std::int64_t most = 0;
  for (const link::RoleMemory& memory : linked.memory) most = std::max(most, memory.total());
  return static_cast<double>(most);
}

namespace {

Prediction predict_row(const ValidationSet& set, const ValidationRow& row,
                       const ValidateOptions& options) {
  Prediction out{.row = &row};
  std::vector<std::string> keys = row.overrides;
  keys.insert(keys.end(), options.overrides.begin(), options.overrides.end());
  try {
    if (set.kind == Measured::collective) {
      out.predicted =
          predict_collective(read_collective(Config::load(set.file, keys))).chosen.seconds;
      return out;
    }
    job::Job job = load(set.file, keys);
    decide_plan(job, nullptr);
    if (set.kind == Measured::memory) {
      out.predicted = predict_memory(job);
      return out;
    }
    const Study s = predict_step(job, options.fidelity, 1);
    if (options.explained) out.explanation = explain(job);
    out.predicted = s.summary.step_time.mean;
    out.bubble = s.summary.bubble_fraction;
    out.exposed = s.summary.exposed_comm_s;
  } catch (const InputError& error) {
    out.refusal = error.what();
  }
  return out;
}

using RowOfSet = std::pair<const ValidationSet*, const ValidationRow*>;

std::vector<Prediction> predictions(const std::vector<RowOfSet>& rows,
                                    const ValidateOptions& options) {
  std::vector<Prediction> out;
#ifdef REHEARSE_HAS_SIM
  if (!options.explained) {
    const auto one = [&](int r) {
      const auto& [set, row] = rows[static_cast<std::size_t>(r)];
      const Prediction p = predict_row(*set, *row, options);
      return nlohmann::json{p.predicted, p.bubble, p.exposed, p.refusal}.dump();
    };
    for (const std::string& text :
         sim::in_processes(static_cast<int>(rows.size()), one,
                           {.jobs = options.jobs, .progress = options.progress})) {
      const nlohmann::json said = nlohmann::json::parse(text);
      out.push_back({.row = rows[out.size()].second,
                     .predicted = said.at(0),
                     .bubble = said.at(1),
                     .exposed = said.at(2),
                     .refusal = said.at(3)});
    }
    return out;
  }
#endif
  for (const auto& [set, row] : rows) out.push_back(predict_row(*set, *row, options));
  return out;
}

}  // namespace

std::vector<Validation> validate(const std::vector<ValidationSet>& sets,
                                 const ValidateOptions& options) {
  std::vector<RowOfSet> rows;
  for (const ValidationSet& set : sets)
    for (const ValidationRow& row : set.rows) rows.emplace_back(&set, &row);
  std::vector<Prediction> predicted = predictions(rows, options);
  std::vector<Validation> out;
  auto next = std::make_move_iterator(predicted.begin());
  for (const ValidationSet& set : sets) {
    const auto end = next + std::ssize(set.rows);
    out.push_back({.set = &set, .rows = {next, end}});
    next = end;
  }
  return out;
}

Accuracy accuracy(const Validation& validation, bool calibrates) {
  Accuracy out;
  std::vector<double> errors;
  for (const Prediction& p : validation.rows) {
    if (p.row->calibrates != calibrates) continue;
    if (!p.refusal.empty()) {
      ++out.refused;
      continue;
    }
    errors.push_back(std::abs(p.error()));
    out.bias += p.error();
  }
  out.rows = static_cast<int>(errors.size());
  if (errors.empty()) return out;
  for (const double e : errors) out.mean += e / out.rows;
  out.bias /= out.rows;
  out.worst = *std::max_element(errors.begin(), errors.end());
  out.median = median(std::move(errors));
  return out;
}

namespace {

/// |ln(predicted / measured)| of the rows of step times that are (not) used to fit.
std::vector<double> distances(const std::vector<Validation>& all, bool calibrates) {
  std::vector<double> out;
  for (const Validation& v : all)
    for (const Prediction& p : v.rows)
      if (v.set->kind == Measured::job && p.refusal.empty() && p.row->calibrates == calibrates)
        out.push_back(std::abs(std::log(p.predicted / p.row->measured)));
  return out;
}

}  // namespace

std::optional<CalibrationError> fitted_error(const std::vector<Validation>& all, double level) {
  std::vector<double> rows = distances(all, true);
  if (rows.empty()) return std::nullopt;
  std::sort(rows.begin(), rows.end());
  const auto at = static_cast<std::size_t>(std::ceil(level * static_cast<double>(rows.size())));
  return CalibrationError{.level = level,
                          .factor = std::exp(rows[std::max<std::size_t>(at, 1) - 1])};
}

std::optional<double> coverage(const std::vector<Validation>& all, const CalibrationError& error) {
  const std::vector<double> rows = distances(all, false);
  if (rows.empty()) return std::nullopt;
  const auto inside = std::count_if(rows.begin(), rows.end(), [&](double distance) {
    return distance <= std::log(error.factor);
  });
  return static_cast<double>(inside) / static_cast<double>(rows.size());
}

nlohmann::ordered_json to_json(const Validation& v) {
  using Json = nlohmann::ordered_json;
  const auto summary = [&](bool calibrates) {
    const Accuracy a = accuracy(v, calibrates);
    const auto known = [&](double error) { return a.rows > 0 ? Json(error) : Json(); };
    return Json{{"rows", a.rows},
                {"refused", a.refused},
                {"mean_abs_error", known(a.mean)},
                {"median", known(a.median)},
                {"worst", known(a.worst)},
                {"bias", known(a.bias)}};
  };
  const bool bytes = v.set->kind == Measured::memory;
  const char* const measured = bytes ? "measured_bytes" : "measured_s";
  const char* const predicted = bytes ? "predicted_bytes" : "predicted_s";
  Json rows = Json::array();
  for (const Prediction& p : v.rows) {
    Json row{{"row", p.row->name},
             {"use", p.row->calibrates ? "calibrate" : "check"},
             {measured, p.row->measured}};
    if (!p.refusal.empty())
      row["refused"] = p.refusal;
    else
      row.update(Json{{predicted, p.predicted}, {"error", p.error()}});
    if (p.refusal.empty() && v.set->kind == Measured::job)
      row.update(Json{{"bubble_fraction", p.bubble}, {"exposed_comm_s", p.exposed}});
    if (p.explanation) row["explain"] = explanation_json(*p.explanation, p.predicted);
    rows.push_back(std::move(row));
  }
  return {{"set", v.set->name},         {"summary", v.set->summary},   {"source", v.set->source},
          {"peers", v.set->peers},      {"goal_percent", v.set->goal}, {"check", summary(false)},
          {"calibrate", summary(true)}, {"rows", std::move(rows)}};
}

}  // namespace rehearse::study
