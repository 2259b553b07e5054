#include "cli/commands/sweep/sweep_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/console/json_out.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

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
                                             {"J a step", "joules_per_step"},
                                             {"a billion tokens", "cost_per_billion_tokens"}};
  static const std::vector<Column> planned{{"step s", "step_s"},
                                           {"dry run", "dry_run_s"},
                                           {"a step", "cost_per_step"},
                                           {"plan", "plan"}};
  static const std::vector<Column> walked{
      {"goodput", "goodput"}, {"+-", "goodput_ci95"},
      {"lost", "lost_s"},     {"interruptions", "interruptions"},
      {"step s", "step_s"},   {"in all", "cost"}};
  if (question == study::Question::simulate) return simulated;
  return question == study::Question::plan ? planned : walked;
}

/// Prices are left out where no price is known.
std::vector<Column> columns_of(const Whole& whole) {
  std::vector<Column> out = columns_of(whole.sweep.question);
  const bool priced =
      std::any_of(whole.results.begin(), whole.results.end(), [](const study::Row& row) {
        return !row.metrics.is_null() && row.metrics.value("currency", Json()).is_string();
      });
  if (!priced)
    std::erase_if(out, [](const Column& c) { return std::string(c.metric).starts_with("cost"); });
  if (whole.sweep.scaling) out.insert(out.begin(), {"efficiency", "efficiency"});
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
  if (metric.starts_with("cost"))
    return study::money_text(number, metrics.value("currency", std::string()));
  return fmt::format("{:.4g}", number);
}

std::string metric_names(const std::vector<study::Metric>& metrics) {
  std::string out;
  for (const study::Metric& one : metrics) out += std::string(out.empty() ? "" : ", ") + one.name;
  return out;
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

/// Null with one metric: there is no frontier.
Json frontier_json(const Whole& whole) {
  if (whole.by.size() < 2) return nullptr;
  Json by = Json::array(), keys = Json::array();
  for (const study::Metric& metric : whole.by)
    by.push_back({{"metric", metric.name}, {"most", metric.most}});
  for (const std::size_t at : study::frontier(whole.results, whole.by))
    keys.push_back(whole.results[at].key);
  return {{"by", std::move(by)}, {"keys", std::move(keys)}};
}

}  // namespace

std::string best_table(const Whole& whole, int top) {
  const bool several = whole.by.size() > 1;
  const std::size_t able = study::ranking(whole.results, whole.by.front()).size();
  std::vector<std::size_t> shown = several ? study::frontier(whole.results, whole.by)
                                           : study::ranking(whole.results, whole.by.front());
  const std::size_t best = shown.size();
  if (!whole.ranked)
    std::sort(shown.begin(), shown.end());
  else
    shown.resize(std::min(shown.size(), static_cast<std::size_t>(top)));
  const bool runs = std::any_of(whole.results.begin(), whole.results.end(),
                                [](const study::Row& row) { return !row.metrics.is_null(); });
  if (shown.empty())
    return runs ? fmt::format("no point has {}: {}\n", metric_names(whole.by),
                              metric_names(whole.by).find("cost") == std::string::npos
                                  ? "a device's peak rate or power is not known"
                                  : "a device has no price (docs/platforms.md)")
                : "";
  std::vector<std::vector<std::string>> lines(1);
  for (const study::Axis& axis : whole.sweep.axes) lines[0].push_back(axis.name);
  const std::vector<Column> columns = columns_of(whole);
  for (const Column& column : columns) lines[0].emplace_back(column.title);
  for (const std::size_t at : shown) {
    const study::Row& row = whole.results[at];
    std::vector<std::string>& line = lines.emplace_back();
    for (const auto& [name, label] : row.values.items()) line.push_back(text_of_label(label));
    for (const Column& column : columns) line.push_back(cell(row.metrics, column.metric));
  }
  if (several)
    return table(lines) +
           fmt::format("\nthe frontier by {}: {} of {} points that can run{}\n",
                       metric_names(whole.by), best, able,
                       shown.size() < best ? fmt::format(", {} shown", shown.size()) : "");
  const std::string scaling =
      whole.sweep.scaling ? fmt::format("{} scaling; efficiency beside the fewest devices\n",
                                        name_of(*whole.sweep.scaling))
                          : "";
  if (!whole.ranked) return table(lines) + "\n" + scaling;
  return table(lines) + fmt::format("\nthe best {} of {} points that can run, by {}\n{}",
                                    shown.size(), able, whole.by.front().name, scaling);
}

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
  std::string out = whole.searched == 0 ? fmt::format("{} points", whole.results.size())
                                        : fmt::format("{} of {} points known", whole.results.size(),
                                                      whole.searched);
  if (refused > 0) out += fmt::format(", {} cannot run", refused);
  if (failed > 0) out += fmt::format(", {} failed and will be tried again", failed);
  if (unknown > 0) out += fmt::format(", {} not computed yet", unknown);
  out += '\n' + reasons.text("reasons");
  if (warned > 0)
    out += fmt::format("warnings of {} points:\n", warned) + warnings.text("warnings");
  return out;
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
                               {"by", whole.by.front().name},
                               {"most", whole.by.front().most},
                               {"frontier", frontier_json(whole)},
                               {"searched", whole.searched > 0 ? Json(whole.searched) : Json()},
                               {"vary", name_of(whole.sweep.vary)},
                               {"scaling", std::move(scaling)},
                               {"axes", std::move(axes)},
                               {"points", to_json(whole.results)}});
}

}  // namespace rehearse::cli
