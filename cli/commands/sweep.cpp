// `rehearse sweep`: predicts many variants of one job. Results are kept as they come, so that a
// sweep that was stopped goes on; at the end come a table of the best, a CSV and a picture.
#include "study/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "cli/batch/batch_system.h"
#include "cli/commands/sweep_on.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/base/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file = {}, output = {}, by = {}, shard = {}, on = {}, wait = {};
  std::vector<std::string> on_arguments = {};
  int jobs = 0, top = 10, shards = 0;
  bool dry_run = false;
};

void read_shard(const std::string& text, study::Work& work) {
  if (text.empty()) return;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, work.shard);
  bool good = error == std::errc() && slash != end && *slash == '/';
  if (good) {
    const auto [rest, wrong] = std::from_chars(slash + 1, end, work.of);
    good = wrong == std::errc() && rest == end;
  }
  if (!good || work.shard < 1 || work.shard > work.of)
    throw InputError(fmt::format("--shard {}: must be I/N with I from 1 to N, as in 1/4", text));
}

/// The options of --on; nothing without it.
std::optional<SweepOn> read_on(const Options& options) {
  if (options.on.empty()) {
    const bool alone = options.shards == 0 && options.on_arguments.empty() && options.wait.empty();
    if (!alone) throw InputError("--shards, --on-args and --wait belong to --on");
    return std::nullopt;
  }
  if (!options.shard.empty()) throw InputError("--shard and --on exclude each other");
  SweepOn out{.system = options.on,
              .file = options.file,
              .folder = options.output,
              .shards = options.shards,
              .jobs = options.jobs};
  for (const std::string& text : options.on_arguments)
    for (std::string& word : words_of(text, "--on-args")) out.arguments.push_back(std::move(word));
  if (!options.wait.empty()) out.wait = duration_of("--wait", options.wait, limits::patience);
  return out;
}

/// What is known of all points, in their order.
struct Whole {
  const study::Sweep& sweep;
  std::vector<study::Row> results;
  study::Metric by;
};

bool is_known(const study::Row& row) {
  return !row.metrics.is_null() || !row.refused.empty() || !row.failed.empty();
}

std::string text_of_label(const Json& label) {
  if (label.is_null()) return "-";
  return label.is_string() ? label.get<std::string>() : label.dump();
}

struct Column {
  const char *title, *metric;
};

const std::vector<Column>& columns_of(study::Question question) {
  static const std::vector<Column> simulated{{"step s", "step_s"},
                                             {"tokens/s", "tokens_per_s"},
                                             {"MFU", "mfu"},
                                             {"bubble", "bubble_fraction"},
                                             {"exposed", "exposed_comm_s"},
                                             {"peak memory", "peak_memory_bytes"},
                                             {"J a step", "joules_per_step"}};
  static const std::vector<Column> planned{
      {"step s", "step_s"}, {"dry run", "dry_run_s"}, {"plan", "plan"}};
  static const std::vector<Column> walked{{"goodput", "goodput"},
                                          {"+-", "goodput_ci95"},
                                          {"lost", "lost_s"},
                                          {"interruptions", "interruptions"},
                                          {"step s", "step_s"}};
  if (question == study::Question::simulate) return simulated;
  return question == study::Question::plan ? planned : walked;
}

std::vector<Column> columns_of(const study::Sweep& sweep) {
  std::vector<Column> out = columns_of(sweep.question);
  if (sweep.scaling) out.insert(out.begin(), {"efficiency", "efficiency"});
  return out;
}

std::string cell(const Json& metrics, const char* name) {
  const Json value = metrics.value(name, Json());
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return "-";
  const auto number = value.get<double>();
  const std::string metric = name;
  if (metric == "mfu" || metric == "bubble_fraction" || metric == "efficiency")
    return percent(number, 1);
  if (metric.starts_with("goodput")) return percent(number, 2);
  if (metric.starts_with("lost_") || metric == "dry_run_s") return to_text(Seconds(number));
  if (metric == "peak_memory_bytes") return to_text(Bytes(number));
  if (metric == "joules_per_step") return to_text(Joules(number));
  if (metric == "exposed_comm_s") return to_text(Seconds(number));
  return fmt::format("{:.4g}", number);
}

std::string best_table(const Whole& whole, int top) {
  std::vector<std::pair<double, const study::Row*>> ranked;
  for (const study::Row& row : whole.results)
    if (!row.metrics.is_null())
      if (const Json value = row.metrics.value(whole.by.name, Json()); value.is_number())
        ranked.emplace_back(value.get<double>() * (whole.by.most ? -1 : 1), &row);
  if (ranked.empty()) return "";
  const bool all = whole.sweep.scaling.has_value();  // a curve, in its order
  if (!all)
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::size_t shown =
      all ? ranked.size() : std::min(ranked.size(), static_cast<std::size_t>(top));
  std::vector<std::vector<std::string>> lines(1);
  for (const study::Axis& axis : whole.sweep.axes) lines[0].push_back(axis.name);
  const std::vector<Column> shown_columns = columns_of(whole.sweep);
  for (const Column& column : shown_columns) lines[0].emplace_back(column.title);
  for (std::size_t i = 0; i < shown; ++i) {
    const study::Row& row = *ranked[i].second;
    std::vector<std::string>& line = lines.emplace_back();
    for (const auto& [name, label] : row.values.items()) line.push_back(text_of_label(label));
    for (const Column& column : shown_columns) line.push_back(cell(row.metrics, column.metric));
  }
  if (all)
    return table(lines) + fmt::format("\n{} scaling; efficiency beside the fewest devices\n",
                                      name_of(*whole.sweep.scaling));
  return table(lines) + fmt::format("\nthe best {} of {} points that can run, by {}\n", shown,
                                    ranked.size(), whole.by.name);
}

study::Metric metric_of(study::Question question, const std::string& by) {
  const std::vector<study::Metric>& all = study::metrics(question);
  if (by.empty()) return all.front();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const study::Metric& m) { return by == m.name; });
  if (found != all.end()) return *found;
  std::string known;
  for (const study::Metric& one : all) known += std::string(known.empty() ? "" : ", ") + one.name;
  throw InputError(fmt::format("--by {}: what = \"{}\" ranks by {}", by, name_of(question), known));
}

/// Lines that several points share, of which the commonest are shown.
class Commonest {
 public:
  void add(const std::string& line) { ++count_[line]; }
  std::string text(const std::string& others) const {
    constexpr std::size_t most = 5;
    std::vector<std::pair<int, std::string>> sorted;
    for (const auto& [line, times] : count_) sorted.emplace_back(-times, line);
    std::sort(sorted.begin(), sorted.end());
    std::string out;
    for (std::size_t i = 0; i < std::min(most, sorted.size()); ++i)
      out += fmt::format("  {} x {}\n", -sorted[i].first, sorted[i].second);
    if (sorted.size() > most)
      out += fmt::format("  and {} other {}\n", sorted.size() - most, others);
    return out;
  }

 private:
  std::map<std::string, int> count_ = {};
};

/// The commonest reasons why points have no result, and the commonest warnings about results.
std::string remarks(const Whole& whole) {
  Commonest reasons, warnings;
  int refused = 0, failed = 0, unknown = 0, warned = 0;
  for (const study::Row& row : whole.results) {
    if (!is_known(row)) ++unknown;
    if (!is_known(row)) continue;
    if (!row.warnings.empty()) ++warned;
    for (const Json& warning : row.warnings) warnings.add(warning.get<std::string>());
    if (!row.metrics.is_null()) continue;
    ++(row.refused.empty() ? failed : refused);
    reasons.add(row.refused.empty() ? row.failed : row.refused);
  }
  std::string out = fmt::format("{} points", whole.results.size());
  if (refused > 0) out += fmt::format(", {} cannot run", refused);
  if (failed > 0) out += fmt::format(", {} failed and will be tried again", failed);
  if (unknown > 0) out += fmt::format(", {} not computed yet", unknown);
  out += '\n' + reasons.text("reasons");
  if (warned > 0)
    out += fmt::format("warnings of {} points:\n", warned) + warnings.text("warnings");
  return out;
}

Json json_of(const Context& context, const Whole& whole) {
  Json axes = Json::array();
  for (const study::Axis& axis : whole.sweep.axes) {
    Json values = Json::array();
    for (const study::AxisValue& value : axis.values) values.push_back(value.label);
    axes.push_back({{"name", axis.name}, {"values", std::move(values)}});
  }
  Json scaling;
  if (whole.sweep.scaling) scaling = name_of(*whole.sweep.scaling);
  return with_header(context, {{"schema_version", 1},
                               {"sweep", whole.sweep.file},
                               {"by", whole.by.name},
                               {"most", whole.by.most},
                               {"vary", name_of(whole.sweep.vary)},
                               {"scaling", std::move(scaling)},
                               {"axes", std::move(axes)},
                               {"points", to_json(whole.results)}});
}

std::string listed(const Whole& whole) {
  std::vector<std::vector<std::string>> lines(1);
  for (const study::Axis& axis : whole.sweep.axes) lines[0].push_back(axis.name);
  lines[0].emplace_back("known");
  for (const study::Row& row : whole.results) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const auto& [name, label] : row.values.items()) line.push_back(text_of_label(label));
    line.emplace_back(is_known(row) ? "yes" : "no");
  }
  return table(lines) + fmt::format("\n{} points\n", whole.results.size());
}

int run_sweep(const Context& context, const Options& options) {
  study::Work work{.jobs = options.jobs, .folder = options.output};
  read_shard(options.shard, work);
  const std::optional<SweepOn> on = read_on(options);
  if (options.output.empty() && !options.dry_run)
    throw InputError("sweep needs -o DIR, a folder for its results; --dry-run lists the points");
  const study::Sweep sweep = study::read_sweep(options.file, context.set);
  const study::Metric by = metric_of(sweep.question, options.by);
  const std::vector<study::Point> points = study::points_of(sweep);
  study::Rows rows = options.output.empty() ? study::Rows{} : study::read_rows(options.output);
  if (options.dry_run) {
    const Whole known{sweep, study::results_of(sweep, points, rows), by};
    std::cout << (context.json ? text_of(json_of(context, known)) : listed(known));
    return good;
  }
  Teller teller(context);
  work.progress = &teller;
  int status = good;
  if (on)
    status = compute_on(context, *on, points, teller, rows);
  else
    study::compute(sweep, points, work, rows);
  teller.done();
  if (status > 128) return status;
  const Whole whole{sweep, study::results_of(sweep, points, rows), by};
  const Json json = json_of(context, whole);
  std::string wrote;
  if (work.of == 1) {
    write_file(options.output + "/results.csv", study::csv_of(sweep, whole.results));
    wrote = "results.jsonl, results.csv";
    if (const std::string python = find_python(); !python.empty()) {
      const TemporaryFolder folder;
      write_file(folder.file("sweep.json"), text_of(json));
      run_report(python,
                 {folder.file("sweep.json"), "-o", options.output + "/sweep.svg", "--quiet"});
      wrote += ", sweep.svg";
    } else {
      wrote += "; no picture: that needs Python with matplotlib (rehearse doctor)";
    }
  }
  if (context.json) {
    std::cout << text_of(json);
    return status;
  }
  std::cout << best_table(whole, options.top) << remarks(whole);
  if (!wrote.empty()) std::cout << fmt::format("{}: {}\n", options.output, wrote);
  return status;
}

}  // namespace

void add_sweep(CLI::App& app, Context& context) {
  const Command command(
      app, context, "sweep", "Predict many variants of a job and find the best",
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep\n"
      "  rehearse sweep experiments/sweep/methods.toml --dry-run\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --by tokens_per_s --top 5\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --shard 1/4\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --on slurm --on-args "
      "\"--time 1:00:00\"");
  auto options = std::make_shared<Options>();
  command.option("SWEEP.toml", options->file, "What to vary (docs/sweep.md)").required();
  command
      .option("-o,--output", options->output,
              "Folder of results; a sweep that was stopped goes on with those in it")
      .type("DIR");
  command
      .option("--by", options->by,
              "The figure by which points are ranked, as in tokens_per_s (docs/sweep.md)")
      .type("METRIC");
  command.option("--top", options->top, "How many of the best points to print")
      .between(1, 1000000)
      .shows_default();
  command
      .option("--jobs", options->jobs,
              "Points computed at a time; 0: as many as cores; with --on: of a task; 0: one")
      .between(0, 4096)
      .shows_default();
  command.option("--shard", options->shard, "Only the points dealt to machine I of N").type("I/N");
  command
      .option("--on", options->on,
              "Compute on other machines: as tasks of HyperQueue (hq) or Slurm (slurm)")
      .one_of(batch_systems());
  command.option("--shards", options->shards, "With --on: how many tasks; 0: chosen")
      .between(0, 100000)
      .shows_default();
  command
      .option("--on-args", options->on_arguments,
              "With --on: arguments for hq submit or sbatch; may be repeated")
      .type("TEXT")
      .repeats();
  command
      .option("--wait", options->wait,
              "With --on: the longest wait, as in 12h; default: until Ctrl-C")
      .type("TIME");
  command.flag("--dry-run", options->dry_run, "List the points and compute none");
  command.runs([&context, options] { return run_sweep(context, *options); });
}

}  // namespace rehearse::cli
