// `rehearse compare`: predicts one job under many methods and prints one table. Below it stand the
// methods that cannot run the job, and why.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "cli/commands/long_run.h"
#include "cli/commands/study_options.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/methods/strategy.h"
#include "engine/planner/planner.h"
#include "study/comparison.h"
#include "study/planning/decision.h"
#include "study/prediction/study.h"

namespace rehearse::cli {
namespace {

struct CompareOptions : StudyFlags {
  std::string methods = "all";
  bool fit = false;
  LongRunFlags long_run = {};
};

using Row = study::ComparedMethod;

/// Whether several seeds were run, so that there is a spread to show.
bool spreads(const Row& row) { return row.study->summary.step_time.values.size() > 1; }

std::vector<std::string> cells(const Row& row) {
  const study::Study& s = *row.study;
  const execution::Summary& m = s.summary;
  std::vector<std::string> memory;
  for (const planner::DeviceNeed& need : s.memory)
    memory.push_back(to_text(Bytes(static_cast<double>(need.need))));
  const double share = m.step_time.mean > 0 ? m.step_time.ci95 / m.step_time.mean : 0;
  return {row.choice.label,
          mesh_text(s),
          fmt::format("{:.4g}", m.step_time.mean),
          spreads(row) ? fmt::format("{:.2g}", m.step_time.ci95) : "",
          fmt::format("{:.4g}", m.samples_per_s),
          spreads(row) ? fmt::format("{:.2g}", m.samples_per_s * share) : "",
          fmt::format("{:.4g}", m.tokens_per_s),
          m.mfu > 0 ? percent(m.mfu, 2) : "-",
          percent(m.bubble_fraction, 1),
          to_text(Seconds(m.exposed_comm_s)),
          fmt::format("{:.3g}", m.bytes_sent_mean / 1e9),
          fmt::format("{}", fmt::join(memory, " / ")),
          m.joules_per_step > 0 ? to_text(Joules(m.joules_per_step)) : "-",
          fixed(m.robustness, 4)};
}

/// What the rows train, and where. Labels may state keys beside the method's, so rows may differ.
struct Work {
  std::set<std::string> models = {}, precisions = {}, clusters = {};
  std::set<int> batches = {}, lengths = {};

  explicit Work(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      if (!row.study) continue;
      const study::Subject& s = row.study->subject;
      models.insert(s.model), precisions.insert(s.precision), clusters.insert(s.cluster);
      batches.insert(s.global_batch), lengths.insert(s.seq_len);
    }
  }
  /// Whether a step of each row does equally much.
  bool equal() const { return models.size() == 1 && batches.size() == 1 && lengths.size() == 1; }
  std::string text() const {
    const auto any = [](const auto& values) {
      return fmt::format("{}", fmt::join(values, " or "));
    };
    return fmt::format("{}, {} samples of {} tokens a step, {} on {}", any(models), any(batches),
                       any(lengths), any(precisions), any(clusters));
  }
};

/// The fastest rows in a line; empty: there are not two, or they do not do the same.
std::string fastest_text(const std::vector<Row>& rows) {
  constexpr std::size_t shown = 3;
  std::vector<std::pair<double, std::string>> all;
  for (const Row& row : rows)
    if (row.study) all.emplace_back(row.study->summary.step_time.mean, row.choice.label);
  if (all.size() < 2) return "";
  if (!Work(rows).equal())
    return "no row is called the fastest: their steps are of different work; compare tokens/s\n";
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out = fmt::format("fastest: {}, {:.4g} s", all[0].second, all[0].first);
  for (std::size_t i = 1; i < std::min(shown, all.size()); ++i)
    out += fmt::format("; {}: {}", all[i].second, planner::slower_text(all[i].first, all[0].first));
  return out + "\n";
}

/// The methods that cannot run the job, those of one reason in a line; empty: all can. `fit`:
/// --fit was given.
std::string refused_text(const std::vector<Row>& rows, bool fit) {
  std::vector<std::pair<std::string, std::string>> lines;  // reason, methods
  for (const Row& row : rows) {
    if (row.study) continue;
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const auto& line) { return line.first == row.brief; });
    if (same == lines.end())
      lines.emplace_back(row.brief, row.choice.label);
    else
      same->second += ", " + row.choice.label;
  }
  std::string out = lines.empty() ? "" : "\ncannot run:\n";
  for (const auto& [reason, methods] : lines) out += fmt::format("  {}: {}\n", methods, reason);
  const bool more = !fit && std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return study::with_changes(row.choice, row.changes).has_value();
  });
  return out + (more ? "--fit predicts methods with the keys that make them fit\n" : "");
}

/// A note where a plan that was chosen gives faster devices more samples and no row of a stated
/// method does so: such rows differ in more than their methods. Else empty.
std::string unlike_shares(const std::vector<Row>& rows) {
  const Row* chosen = nullptr;
  const study::MethodChoice* equal = nullptr;  // that could have shares by speed
  for (const Row& row : rows) {
    if (!row.study) continue;
    if (row.decided) {
      if (!row.study->shares.empty()) chosen = &row;
    } else if (!row.study->shares.empty()) {
      return "";
    } else if (methods::strategy_named(row.study->method).combines.shares) {
      equal = equal == nullptr ? &row.choice : equal;
    }
  }
  if (chosen == nullptr || equal == nullptr) return "";
  return fmt::format(
      "\nnote: only {} gives faster devices more samples; {}{}shares=speed does so too\n",
      chosen->choice.label, equal->label, equal->set.empty() ? "@" : ",");
}

std::string describe(const std::vector<Row>& rows, bool fit) {
  std::string kinds;
  std::vector<std::string> warnings;
  std::size_t seeds = 1;
  std::vector<int> steps;
  const study::Study* any = nullptr;
  for (const Row& row : rows) {
    if (!row.study) continue;
    any = &*row.study;
    seeds = row.study->seeds.size();
    const std::vector<int>& run = row.study->steps.by_seed;
    steps.insert(steps.end(), run.begin(), run.end());
    for (const std::string& w : row.study->warnings)
      if (std::find(warnings.begin(), warnings.end(), w) == warnings.end()) warnings.push_back(w);
  }
  if (any != nullptr) {
    std::vector<std::string> names;
    for (const planner::DeviceNeed& need : any->memory) names.push_back(need.kind);
    kinds = fmt::format("{}", fmt::join(names, " / "));
  }
  std::vector<std::vector<std::string>> lines{{"method", "mesh", "step s", "+-", "samples/s", "+-",
                                               "tokens/s", "MFU", "bubble", "exposed", "GB sent",
                                               "peak memory", "J a step", "robust"}};
  for (const Row& row : rows)
    if (row.study) lines.push_back(cells(row));
  const bool spread =
      std::ranges::any_of(rows, [](const Row& row) { return row.study && spreads(row); });
  if (!spread)
    for (std::vector<std::string>& line : lines)
      line.erase(line.begin() + 5), line.erase(line.begin() + 3);
  std::string out;
  if (any != nullptr)
    out = table(lines) +
          fmt::format(
              "\n{}\n{}{} seed{} of {} steps; GB sent: mean per rank and step; peak memory: {}; "
              "fidelity: {}\n",
              Work(rows).text(), spread ? "+-: 95% interval over " : "", seeds,
              seeds == 1 ? "" : "s", study::range_text(steps), kinds, name_of(any->fidelity));
  out += fastest_text(rows);
  for (const std::string& warning : warnings) out += "warning: " + warning + "\n";
  out += refused_text(rows, fit);
  for (const Row& row : rows)
    if (row.study && row.decided)
      out += fmt::format("\n{} chose {}", row.choice.label, study::choices_text(*row.decided));
  return out + unlike_shares(rows);
}

nlohmann::ordered_json to_json(const Context& context, const std::vector<Row>& rows, bool timings) {
  using Json = nlohmann::ordered_json;
  Json results = Json::array(), refused = Json::array();
  for (const Row& row : rows) {
    if (!row.study) {
      refused.push_back({{"method", row.choice.label}, {"reason", row.refusal}});
      continue;
    }
    Json one = to_json(*row.study);
    one["method"] = row.choice.label;
    if (row.decided) one["choices"] = study::choices_json(*row.decided);
    if (timings) one["timings"] = timings_json(*row.study);
    results.push_back(std::move(one));
  }
  return with_header(
      context,
      {{"schema_version", 1}, {"results", std::move(results)}, {"cannot_run", std::move(refused)}});
}

int run_compare(const Context& context, const CompareOptions& options) {
  Teller teller(context);
  const study::StudyOptions how = study_options(options, teller);
  const std::string python = options.report.empty() ? "" : need_python("--report");
  const std::vector<Row> rows = study::compare_methods({.file = options.job, .set = context.set},
                                                       options.methods, how, options.fit);
  if (!options.output.empty()) write_file(options.output, text_of(to_json(context, rows, false)));
  if (!options.report.empty()) {
    teller.say("writing the report");
    const TemporaryFolder folder;
    write_file(folder.file("compare.json"), text_of(to_json(context, rows, false)));
    run_report(python, {folder.file("compare.json"), "-o", options.report, "--quiet"});
  }
  teller.done();
  std::cout << (context.json ? text_of(to_json(context, rows, options.timings))
                             : describe(rows, options.fit));
  if (options.timings && !context.json)
    for (const Row& row : rows)
      if (row.study)
        std::cout << fmt::format("wall clock of {}: {}\n", row.choice.label,
                                 to_text(Seconds(row.study->compile_s + row.study->link_s +
                                                 row.study->costs_s + row.study->run_s)));
  const bool any =
      std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.study.has_value(); });
  if (!any)
    throw InputError(fmt::format("none of the methods can run this job; {}: {}",
                                 rows.front().choice.label, rows.front().refusal));
  return good;
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  const Command command(
      app, context, "compare", "Predict the step time of a job under several methods",
      "  rehearse compare experiments/paper-ddp.toml\n"
      "  rehearse compare experiments/paper-ddp.toml --methods ddp,zero2,1f1b --report out.html\n"
      "  rehearse compare experiments/paper-ddp.toml --methods "
      "1f1b@pp=2,1f1b@pp=4,micro_batches=8\n"
      "  rehearse compare experiments/what-if/gpt2.toml --fit --set model.name=gemma2-9b\n"
      "  rehearse compare experiments/goodput/llama3.toml --duration 54d --recovery "
      "restart,spare");
  auto options = std::make_shared<CompareOptions>();
  add_study_flags(command, *options);
  command
      .option("--methods", options->methods,
              "NAME[@KEY=VALUE,...],... or all; keys of [method], for that row alone; "
              "plan: the job's")
      .type("LIST")
      .shows_default();
  command.flag("--fit", options->fit,
               "Give a method that does not fit into memory the keys that make it fit");
  const Option duration = add_duration(command, options->long_run.duration);
  for (const char* other : {"--methods", "--fit", "--report", "--timings"})
    duration.excludes(other);
  command
      .option("--recovery", options->long_run.recovery,
              "With --duration: restart,shrink,grow,replica,spare or some of them")
      .type("LIST")
      .needs(duration);
  command
      .option("--checkpoint", options->long_run.checkpoint,
              "With --duration: full,async,sharded,incremental,peer or some of them")
      .type("LIST")
      .needs(duration);
  command.runs([&context, options] {
    return options->long_run.duration.empty() ? run_compare(context, *options)
                                              : compare_long(context, *options, options->long_run);
  });
}

}  // namespace rehearse::cli
