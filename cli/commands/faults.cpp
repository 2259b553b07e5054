// `rehearse faults`: draws a fault trace for a job from its failure model, or converts a trace of
// spot instances, and says by cause what breaks.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <set>

#include "cli/commands/long_run.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/base/table.h"
#include "engine/faults/trace_file.h"
#include "study/load.h"
#include "study/long_runs/goodput_study.h"

namespace rehearse::cli {
namespace {

struct FaultsOptions {
  std::string job = {}, duration = {}, output = {};
};

struct CauseCount {
  int incidents = 0, events = 0;
  std::map<std::string_view, int> kinds = {};
};

/// Events of one cause at one time are one incident.
std::map<std::string, CauseCount> by_cause(const faults::Trace& trace) {
  std::map<std::string, CauseCount> out;
  std::set<std::pair<std::string, double>> seen;
  for (const faults::Event& e : trace.events) {
    CauseCount& c = out[e.cause.empty() ? "not stated" : e.cause];
    ++c.events;
    ++c.kinds[name_of(e.kind)];
    const double key = e.at ? e.at->value : -1.0 - static_cast<double>(e.step);
    if (seen.emplace(e.cause, key).second) ++c.incidents;
  }
  return out;
}

int run_faults(const Context& context, const FaultsOptions& options) {
  const Seconds duration = parse_duration(options.duration);
  if (!options.output.empty()) check_writable("-o", options.output);
  const job::Job job = study::load(options.job, context.set);
  study::JobFailures failures = study::failures_of(job, duration, 1);
  faults::Trace& trace = failures.traces.front();
  trace.cluster = job.cluster.name();
  trace.spares = failures.spares;
  trace.replacement = failures.replacement;
  const std::vector<Id> nodes = goodput::layout_of(job.cluster, job.plan).node_of_slot;
  if (failures.of_slots)
    for (faults::Event& e : trace.events) e.node = nodes[e.node];
  if (!options.output.empty()) write_file(options.output, to_toml(trace));

  const double node_days = static_cast<double>(nodes.size()) * duration.value / 86400;
  int incidents = 0;
  std::vector<std::pair<std::string, CauseCount>> causes;
  for (auto& [name, count] : by_cause(trace)) {
    incidents += count.incidents;
    causes.emplace_back(name, count);
  }
  std::stable_sort(causes.begin(), causes.end(), [](const auto& a, const auto& b) {
    return a.second.incidents > b.second.incidents;
  });
  const double rate = 1000 * incidents / node_days;
  const double expected_incidents = failures.per_day * duration.value / 86400;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> lines{{"cause", "incidents", "share", "events"}};
  for (const auto& [name, c] : causes) {
    std::string kinds;
    nlohmann::ordered_json events = nlohmann::ordered_json::object();
    for (const auto& [kind, number] : c.kinds) {
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", number, kind);
      events[std::string(kind)] = number;
    }
    lines.push_back({name, fmt::format("{}", c.incidents),
                     fmt::format("{:.1f}%", 100.0 * c.incidents / incidents), kinds});
    list.push_back({{"cause", name}, {"incidents", c.incidents}, {"events", std::move(events)}});
  }
  if (context.json) {
    std::cout << text_of(with_header(context, {{"schema_version", 1},
                                               {"cluster", job.cluster.name()},
                                               {"nodes", nodes.size()},
                                               {"failures", failures.source},
                                               {"seed", trace.seed},
                                               {"duration_s", duration.value},
                                               {"incidents", incidents},
                                               {"expected_incidents", expected_incidents},
                                               {"per_1000_node_days", rate},
                                               {"causes", std::move(list)}}));
    return good;
  }
  std::cout << fmt::format(
                   "{} incident{} in {:.4g} d on {} nodes of {}, {:.3g} per 1000 node-days{}\n",
                   incidents, incidents == 1 ? "" : "s", duration.value / 86400, nodes.size(),
                   job.cluster.name(), rate,
                   incidents > 0 ? fmt::format(", one in {}", to_text(duration / incidents)) : "")
            << fmt::format("failures  {}{}\n", failures.source,
                           failures.of_slots
                               ? fmt::format(" ({}), seed {}; {:.4g} expected", failures.summary,
                                             trace.seed, expected_incidents)
                               : "");
  if (incidents > 0) std::cout << "\n" << table(lines);
  return good;
}

}  // namespace

void add_faults(CLI::App& app, Context& context) {
  const Command command(
      app, context, "faults", "Draw a fault trace for a job from its failure model",
      "  rehearse faults experiments/goodput/llama3.toml --duration 54d\n"
      "  rehearse faults experiments/goodput/llama3.toml --duration 7d --set faults.seed=2 -o "
      "week.toml\n"
      "  rehearse faults job.toml --duration 12h --set faults.trace=spot.csv -o spot.toml");
  auto options = std::make_shared<FaultsOptions>();
  command.job(options->job).required();
  command.option("--duration", options->duration, "How long, as in 54d").type("TIME").required();
  command.option("-o,--output", options->output, "Write the trace (TOML, docs/faults.md)")
      .type("FILE");
  command.runs([&context, options] { return run_faults(context, *options); });
}

}  // namespace rehearse::cli
