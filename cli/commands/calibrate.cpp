// `rehearse calibrate`: turns a user's own measurements into a device, software or library file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/files/foreign.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/program/program.h"
#include "study/calibration/calibration.h"

namespace rehearse::cli {
namespace {

struct CalibrateOptions {
  study::CalibrationQuestion question = {};
  std::string kind = {}, output = {}, software_output = {};
  bool rows = false;
};

/// Refuses options that this kind of measurements does not use.
void check_options(study::Measurements kind, const study::CalibrationQuestion& q) {
  const auto only = [&](const char* flag, const std::string& value, bool fits, const char* with) {
    if (!value.empty() && !fits)
      throw InputError(fmt::format("{} {}: only counts with {}; {} holds {}", flag, value, with,
                                   q.data, name_of(kind)));
  };
  const bool nccl = kind == study::Measurements::nccl_tests,
             trace = kind == study::Measurements::trace;
  only("--job", q.job, !trace, "tables of measurements");
  only("--device", q.device, !nccl, "steps and traces");
  only("--cluster", q.cluster, nccl, "nccl-tests");
  only("--ranks", q.ranks, nccl, "nccl-tests");
  only("--move", q.move, nccl, "nccl-tests");
  if (trace && !q.overrides.empty())
    throw InputError(
        fmt::format("--set {}: a trace has no job; keys of a job only count with "
                    "tables of measurements",
                    q.overrides.front()));
}

std::string value_text(const study::CalibratedKey& key, double value) {
  return key.duration ? to_text(Seconds(value)) : fmt::format("{:.4g}", value);
}

/// The fitted keys as a table, the others in a line below it.
std::string key_table(const study::Calibration& c) {
  std::vector<std::vector<std::string>> lines{{"key", "before", "after", "+-", "from"}};
  std::vector<std::string> kept;
  for (const study::CalibratedKey& key : c.keys)
    if (key.fitted)
      lines.push_back({key.key, value_text(key, key.at_start), value_text(key, key.calibrated),
                       value_text(key, key.spread), key.from});
    else
      kept.push_back(fmt::format("{} {}", key.key, value_text(key, key.at_start)));
  return (lines.size() > 1 ? table(lines) : "") +
         (kept.empty() ? "" : fmt::format("not fitted: {}\n", fmt::join(kept, ", ")));
}

std::string error_table(const study::Calibration& c) {
  const auto count = [&](bool fitted) {
    return std::count_if(c.rows.begin(), c.rows.end(),
                         [&](const study::CalibratedRow& row) { return row.fitted == fitted; });
  };
  std::vector<std::vector<std::string>> lines{
      {"mean error of", c.rows_are, "before", "after", "cross-validated"},
      {"fitted " + c.rows_are, fmt::format("{}", count(true)),
       percent(mean_error(c, true, false), 1), percent(mean_error(c, true, true), 1),
       c.folds > 0 ? fmt::format("{} ({} folds)", percent(c.cross_validated, 1), c.folds) : "-"}};
  if (count(false) > 0)
    lines.push_back({"check " + c.rows_are, fmt::format("{}", count(false)),
                     percent(mean_error(c, false, false), 1),
                     percent(mean_error(c, false, true), 1), ""});
  return table(lines);
}

std::string row_table(const study::Calibration& c) {
  std::vector<std::vector<std::string>> lines{
      {"row", "use", "measured", "before", "error", "after", "error"}};
  const auto error = [](double predicted, double measured) {
    return fmt::format("{:+.1f}%", 100 * (predicted / measured - 1));
  };
  for (const study::CalibratedRow& row : c.rows)
    lines.push_back({row.name, row.fitted ? "calibrate" : "check", to_text(Seconds(row.measured)),
                     to_text(Seconds(row.at_start)), error(row.at_start, row.measured),
                     to_text(Seconds(row.calibrated)), error(row.calibrated, row.measured)});
  return table(lines);
}

std::string report_text(const CalibrateOptions& options, const study::Calibration& c) {
  std::vector<std::vector<std::string>> facts{
      {"measurements", fmt::format("{} ({})", options.question.data, name_of(c.kind))}};
  for (const auto& [name, value] : c.facts) facts.push_back({name, value});
  std::size_t name_width = 0;
  for (const auto& line : facts) name_width = std::max(name_width, width(line[0]));
  std::string out;
  for (const auto& line : facts) out += fmt::format("{:<{}}  {}\n", line[0], name_width, line[1]);
  if (options.rows && !c.rows.empty()) out += "\n" + row_table(c);
  out += "\n" + key_table(c);
  if (!c.rows.empty()) out += "\n" + error_table(c);
  if (!c.notes.empty()) out += '\n';
  for (const std::string& note : c.notes) out += "note: " + note + "\n";
  return out;
}

/// Writes what was fitted. Throws InputError, before it writes anything, when a file lacks a name
/// or a name lacks content.
void write_files(const CalibrateOptions& options, const study::Calibration& c) {
  std::string path = options.output, software_path = options.software_output;
  if (path.empty() && software_path.empty()) return;
  const std::string& text = c.device_file.empty() ? c.library_file : c.device_file;
  if (text.empty() && software_path.empty()) std::swap(path, software_path);
  if (text.empty() && c.software_file.empty())
    throw InputError("nothing was fitted, so there is nothing to write; --fit names other keys");
  if (text.empty() != path.empty() || c.software_file.empty() != software_path.empty())
    throw InputError(
        text.empty() || c.software_file.empty()
            ? "keys of one file were fitted, so -o alone names it"
            : "keys of a device and of a software were fitted together: -o FILE names the device "
              "file and --software-output FILE the software file; give both");
  if (!text.empty()) write_file(path, text);
  if (!c.software_file.empty()) write_file(software_path, c.software_file);
}

int run_calibrate(const Context& context, CalibrateOptions options) {
  study::CalibrationQuestion& question = options.question;
  question.overrides = context.set;
  question.text = read_file(question.data);
  refuse_foreign(question.text, question.data);
  const study::Measurements kind = options.kind.empty()
                                       ? study::kind_of(question.text, question.data)
                                       : *from_name<study::Measurements>(options.kind);
  check_options(kind, question);
  if (!options.output.empty()) check_writable("--output", options.output);
  if (!options.software_output.empty())
    check_writable("--software-output", options.software_output);
  Teller teller(context);
  question.tell = [&](const std::string& text) { teller.say(text); };
  const study::Calibration done = study::calibrate(kind, question);
  teller.done();
  nlohmann::ordered_json json{{"schema_version", 1}, {"measurements", question.data}};
  json.update(to_json(done));
  const std::string text =
      context.json ? text_of(with_header(context, json)) : report_text(options, done);
  write_files(options, done);
  std::cout << text;
  return good;
}

}  // namespace

void add_calibrate(CLI::App& app, Context& context) {
  const Command command(
      app, context, "calibrate", "Make a device or software file of your own measurements",
      "  rehearse calibrate steps.csv --job job.toml --device \"A100 80GB\" -o a100.toml\n"
      "  rehearse calibrate steps.csv --job job.toml --software pytorch-2 --fit host.forward\n"
      "  rehearse calibrate all_reduce.txt --cluster dgx-a100 --software pytorch-2 -o nccl.toml\n"
      "  rehearse calibrate trace.json --device H100 --software pytorch-2 -o h100.toml \\\n"
      "    --software-output mine.toml");
  auto options = std::make_shared<CalibrateOptions>();
  study::CalibrationQuestion& question = options->question;
  command.option("DATA", question.data, "Table or log of step times, nccl-tests output, or trace")
      .required();
  command.option("--kind", options->kind, "What DATA is; default: what it looks like")
      .one_of(names_of<study::Measurements>());
  command.option("--job", question.job, "What all rows of a table have in common").type("JOB.toml");
  command.option("--device", question.device, "Fit this device; only rows that use it count")
      .type("NAME");
  command
      .option("--software", question.software,
              "Fit this software or its library; only rows that use it count")
      .type("NAME");
  command.option("--fit", question.fit, "Keys to fit; default: those that DATA shows")
      .type("KEY")
      .comma_separated();
  command.option("--cluster", question.cluster, "Of nccl-tests: the cluster, by name or file")
      .type("CLUSTER");
  command
      .option("--ranks", question.ranks, "Of nccl-tests: number of ranks, or devices as in 0-3,6")
      .type("RANKS");
  command.option("--move", question.move, "Of nccl-tests: which collective")
      .one_of(names_of<program::Move>());
  command.option("--folds", question.folds, "Of cross-validation; under 10 rows: one a row")
      .type("K")
      .between(2, 100)
      .shows_default();
  command
      .option("--evaluations", question.evaluations, "The most predictions of all rows for one fit")
      .type("N")
      .between(10, 100000)
      .shows_default();
  command.flag("--rows", options->rows, "Print each row");
  command.option("-o,--output", options->output, "Write the device, software or library file")
      .type("FILE.toml");
  command
      .option("--software-output", options->software_output,
              "Write the software file, where -o is the device's")
      .type("FILE.toml");
  command.runs([&context, options] { return run_calibrate(context, *options); });
}

}  // namespace rehearse::cli
