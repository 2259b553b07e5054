// `rehearse validate`: predicts published measurements and prints how far off each set is, beside
// what other simulators reach on the same rows.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "study/calibration/interval.h"
#include "study/calibration/validation.h"

namespace rehearse::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> sets = {};
  std::string row = {}, fidelity = "analytic", output = {};
  int jobs = 0;
  bool rows = false;
};

std::string error_text(double error) { return fmt::format("{:+.1f}%", 100 * error); }

std::string summary_table(const std::vector<study::Validation>& all) {
  std::vector<std::vector<std::string>> lines{
      {"set", "use", "rows", "refused", "mean error", "median", "worst", "bias", "goal", "others"}};
  for (const study::Validation& v : all)
    for (const bool calibrates : {false, true}) {
      const study::Accuracy a = study::accuracy(v, calibrates);
      if (a.rows + a.refused == 0) continue;
      const auto of_rows = [&](const std::string& text) { return a.rows == 0 ? "-" : text; };
      lines.push_back(
          {v.set->name, calibrates ? "calibrate" : "check", fmt::format("{}", a.rows),
           fmt::format("{}", a.refused), a.rows == 0 ? "no row could run" : percent(a.mean, 1),
           of_rows(percent(a.median, 1)), of_rows(percent(a.worst, 1)), of_rows(error_text(a.bias)),
           calibrates || v.set->goal == 0 ? "" : fmt::format("{:g}%", v.set->goal),
           calibrates ? "" : v.set->peers});
    }
  return table(lines) +
         "\nmean error: mean of |predicted / measured - 1|; bias: its signed mean; calibrate: rows "
         "that constants were fitted to\n";
}

std::string row_table(const study::Validation& v) {
  const auto text = [&](double measure) {
    return v.set->kind == study::Measured::memory ? to_text(Bytes(measure))
                                                  : to_text(Seconds(measure));
  };
  const bool steps = v.set->kind == study::Measured::job;
  std::vector<std::vector<std::string>> lines{
      {"row of " + v.set->name, "use", "measured", "predicted", "error"}};
  if (steps) lines[0].insert(lines[0].end(), {"exposed", "bubble"});
  for (const study::Prediction& p : v.rows) {
    std::vector<std::string> line{p.row->name, p.row->calibrates ? "calibrate" : "check",
                                  text(p.row->measured)};
    if (!p.refusal.empty())
      line.push_back("refused: " + p.refusal);
    else
      line.insert(line.end(), {text(p.predicted), error_text(p.error())});
    if (p.refusal.empty() && steps)
      line.insert(line.end(), {to_text(Seconds(p.exposed)), percent(p.bubble, 1)});
    lines.push_back(std::move(line));
  }
  return table(lines) +
         (steps
              ? "\nexposed: communication that compute does not hide; bubble: part of the compute "
                "lanes' time without compute\n\n"
              : "\n");
}

/// Keeps the one row. Returns whether the set has it.
bool keep_row(study::ValidationSet& set, const std::string& name) {
  std::erase_if(set.rows, [&](const study::ValidationRow& row) { return row.name != name; });
  return !set.rows.empty();
}

void keep_rows(std::vector<study::ValidationSet>& sets, const std::string& name) {
  std::vector<std::string> known;
  for (const study::ValidationSet& set : sets)
    for (const study::ValidationRow& row : set.rows) known.push_back(row.name);
  std::erase_if(sets, [&](study::ValidationSet& set) { return !keep_row(set, name); });
  if (!sets.empty()) return;
  throw InputError(
      fmt::format("--row: no set has a row \"{}\"{}; `rehearse validate --rows` lists "
                  "them",
                  name, did_you_mean(name, known)));
}

/// When no row can be predicted, the reason is most likely a wrong --set.
void check_any_predicted(const std::vector<study::Validation>& all) {
  const study::Prediction* first = nullptr;
  for (const study::Validation& v : all)
    for (const study::Prediction& p : v.rows) {
      if (p.refusal.empty()) return;
      if (first == nullptr) first = &p;
    }
  if (first != nullptr) throw InputError(first->refusal);
}

/// What the rows say of the uncertainty of predictions; empty without rows of both uses.
std::string interval_line(const std::vector<study::Validation>& all) {
  const study::CalibrationError stated = study::calibration_error();
  const auto fitted = study::fitted_error(all, stated.level);
  const auto held = study::coverage(all, stated);
  if (!fitted || !held) return "";
  return fmt::format(
      "{:.0f}% interval: a factor of {:g} (validation/interval.toml); it is {:.3f} for "
      "the calibrate rows of step times, and {:g} holds {} of the check rows\n",
      100 * stated.level, stated.factor, fitted->factor, stated.factor, percent(*held, 1));
}

nlohmann::ordered_json interval_json(const std::vector<study::Validation>& all) {
  const study::CalibrationError stated = study::calibration_error();
  const auto fitted = study::fitted_error(all, stated.level);
  const auto held = study::coverage(all, stated);
  if (!fitted || !held) return nullptr;
  return {{"level", stated.level},
          {"factor", stated.factor},
          {"fitted_factor", fitted->factor},
          {"check_rows_inside", *held}};
}

int run_validate(const Context& context, const ValidateOptions& options) {
  const std::string python = check_result_file(options.output);
  std::vector<study::ValidationSet> sets = study::validation_sets(options.sets);
  if (!options.row.empty()) keep_rows(sets, options.row);
  std::size_t rows = 0;
  for (const study::ValidationSet& set : sets) rows += set.rows.size();
  Teller teller(context);
  const std::vector<study::Validation> all =
      study::validate(sets, {.fidelity = *from_name<study::Fidelity>(options.fidelity),
                             .overrides = context.set,
                             .explained = !options.row.empty(),
                             .jobs = options.jobs,
                             .progress = [&](int done) {
                               teller.say(fmt::format("{} of {} rows predicted", done, rows));
                             }});
  teller.done();
  check_any_predicted(all);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const study::Validation& v : all) results.push_back(to_json(v));
  const std::string json = text_of(with_header(context, {{"schema_version", 1},
                                                         {"fidelity", options.fidelity},
                                                         {"interval", interval_json(all)},
                                                         {"sets", std::move(results)}}));
  write_result_file(options.output, json, python);
  if (context.json) {
    std::cout << json;
    return good;
  }
  if (options.rows || !options.row.empty())
    for (const study::Validation& v : all) {
      std::cout << row_table(v);
      for (const study::Prediction& p : v.rows)
        if (p.explanation)
          std::cout << study::explanation_text(*p.explanation, p.predicted) << "\n";
    }
  std::cout << summary_table(all) << interval_line(all);
  return good;
}

}  // namespace

void add_validate(CLI::App& app, Context& context) {
  const Command command(
      app, context, "validate", "Predict published measurements and compare",
      "  rehearse validate\n"
      "  rehearse validate megatron-node --rows\n"
      "  rehearse validate -o accuracy.svg\n"
      "  rehearse validate --row h2048-l24-tp1-dp2-pp2-mb4-gb16\n"
      "  rehearse validate megatron-node --set software.host.forward=50us --json");
  auto options = std::make_shared<ValidateOptions>();
  command.option("sets", options->sets, "Names of sets; default: all").type("SET");
  command.flag("--rows", options->rows, "Print each row");
  command.option("--row", options->row, "Predict, print and explain this row alone").type("NAME");
  command.option("--fidelity", options->fidelity, "How to predict")
      .one_of(names_of<study::Fidelity>())
      .shows_default();
  command.option("--jobs", options->jobs, "Rows predicted at a time; 0: as many as cores")
      .between(0, 4096)
      .shows_default();
  command.option("-o,--output", options->output, "Write JSON, or a picture (.svg, .png, .pdf)")
      .type("FILE");
  command.runs([&context, options] { return run_validate(context, *options); });
}

}  // namespace rehearse::cli
