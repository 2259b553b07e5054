#include "study/prediction/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/cluster/disturbance.h"
#include "engine/link/workspace.h"
#include "study/load.h"

namespace rehearse::study {
namespace {

using execution::Explanation;
using execution::PartKind;
using execution::Stretch;
using TableRows = std::vector<std::vector<std::string>>;

constexpr std::size_t shown = 8;         // lines of each list
constexpr double worth_a_line = 0.0005;  // of the step

std::string seconds(double s) { return to_text(Seconds(s)); }
/// "rank 8 and 7 equal": the first of several things that are alike.
std::string alike(const std::string& first, int count) {
  return count == 1 ? first : fmt::format("{} and {} equal", first, count - 1);
}
std::string ranks_text(Id first, int ranks) { return alike(fmt::format("rank {}", first), ranks); }

std::string kind_text(PartKind kind) {
  switch (kind) {
    case PartKind::kernel:
      return "other kernels";
    case PartKind::host_copy:
      return "copies to and from the host";
    default:
      return std::string(name_of(kind));
  }
}

std::string part_table(const Explanation& e) {
  TableRows rows{{"where the step goes", "path", "", "mean rank", ""}};
  const auto line = [&](const std::string& name, double path, double ranks) {
    rows.push_back({name, seconds(path), percent(path / e.step_s, 1), seconds(ranks),
                    percent(ranks / e.step_s, 1)});
  };
  for (std::size_t i = 0; i < e.parts.size();) {
    std::size_t end = i;
    double path = 0, ranks = 0;
    for (; end < e.parts.size() && e.parts[end].part.kind == e.parts[i].part.kind; ++end)
      path += e.parts[end].path, ranks += e.parts[end].ranks;
    const std::string kind = kind_text(e.parts[i].part.kind);
    if (end == i + 1) {
      line(kind + ": " + e.parts[i].part.name, path, ranks);
    } else {
      line(kind, path, ranks);
      for (std::size_t k = i; k < end; ++k)
        line("  " + e.parts[k].part.name, e.parts[k].path, e.parts[k].ranks);
    }
    i = end;
  }
  line("sum", e.step_s, e.step_s);
  const double latency =
      std::accumulate(e.parts.begin(), e.parts.end(), 0.0,
                      [](double sum, const auto& part) { return sum + part.latency; });
  return table(rows) +
         fmt::format(
             "path: the critical path; mean rank: communication is what compute does not "
             "hide, waiting is for other ranks\n") +
         (latency > worth_a_line * e.step_s
              ? fmt::format("of the communication on the path, {} is latency\n", seconds(latency))
              : "");
}

std::string what(const Stretch& s) {
  return s.from == s.to ? fmt::format("{} {}", s.what, s.from)
                        : fmt::format("{} {} to {}", s.what, s.from, s.to);
}

/// Stretches that differ only in their micro-batch are one line.
std::string path_table(const Explanation& e) {
  struct Line {
    const Stretch* first = nullptr;
    int times = 0;
    double seconds = 0;
  };
  std::vector<Line> lines;
  std::map<std::tuple<std::string, std::string, std::string, Id>, std::size_t> known;
  for (const Stretch& s : e.path) {
    const auto [it, fresh] = known.try_emplace({s.what, s.from, s.to, s.rank}, lines.size());
    if (fresh) lines.push_back({&s});
    ++lines[it->second].times;
    lines[it->second].seconds += s.seconds();
  }
  std::ranges::stable_sort(lines, std::greater(), &Line::seconds);
  double all = 0, rest = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    all += lines[i].seconds;
    if (i >= shown) rest += lines[i].seconds;
  }
  TableRows rows{{"critical path", "where", "times", "takes", "share"}};
  for (std::size_t i = 0; i < std::min(shown, lines.size()); ++i)
    rows.push_back({what(*lines[i].first), ranks_text(lines[i].first->rank, lines[i].first->ranks),
                    fmt::format("{}", lines[i].times), seconds(lines[i].seconds),
                    percent(lines[i].seconds / all, 1)});
  if (lines.size() > shown)
    rows.push_back({fmt::format("{} more", lines.size() - shown), "", "", seconds(rest),
                    percent(rest / all, 1)});
  return table(rows);
}

std::string use_tables(const Explanation& e) {
  TableRows devices{{"device", "where", "role", "busy"}};
  for (const execution::DeviceUse& d : e.devices)
    if (devices.size() <= shown)
      devices.push_back({d.kind, ranks_text(d.rank, d.ranks), d.role, percent(d.busy, 1)});
  std::string out = table(devices);
  if (e.devices.size() > shown)
    out += fmt::format("and {} more, down to {}\n", e.devices.size() - shown,
                       percent(e.devices.back().busy, 1));
  if (e.links.empty()) return out;
  TableRows links{{"links", "each", "a step", "used"}};
  for (const execution::LinkUse& l : e.links)
    if (links.size() <= shown)
      links.push_back({alike(l.first, l.count), to_text(l.bandwidth), to_text(Bytes(l.bytes)),
                       percent(l.utilisation, 1)});
  out += "\n" + table(links);
  if (e.links.size() > shown)
    out += fmt::format("and {} more, down to {}\n", e.links.size() - shown,
                       percent(e.links.back().utilisation, 1));
  if (e.links.front().utilisation > 1)
    out +=
        "more than 100%: ops of different lanes use these links at once, each as if alone; "
        "--fidelity fluid shares them\n";
  return out;
}

std::string gain_table(const Explanation& e) {
  TableRows rows{{"10% more of", "step", "saves", ""}};
  std::vector<std::string> nothing;
  for (const execution::Gain& g : e.gains) {
    const double saved = e.step_s - g.seconds;
    if (std::abs(saved) < worth_a_line * e.step_s)
      nothing.push_back(g.resource);
    else
      rows.push_back(
          {g.resource, seconds(g.seconds), percent(saved / e.step_s, 1), seconds(saved)});
  }
  std::string out = rows.size() > 1 ? table(rows) : "";
  if (!nothing.empty()) out += "less than 0.05% by 10% more of\n";
  for (const std::string& resource : nothing) out += "  " + resource + "\n";
  return out;
}

}  // namespace

Explanation explain(const job::Job& job) {
  const link::OrderedProgram linked = link::order(predicted_program_of(job));
  execution::Pricing pricing{
      .model = job.model,
      .cluster = job.cluster,
      .rank_to_device = job.plan.placement.rank_to_device,
      .optimizer = job.plan.optimizer,
      .profile = profile_of(job),
      .slow = link_slowdowns(job.disturb, job.cluster),
      .pace = rank_slowdowns(job.disturb, static_cast<std::size_t>(linked.program.world_size))};
  if (pricing.rank_to_device.empty()) {
    pricing.rank_to_device.resize(static_cast<std::size_t>(linked.program.world_size));
    std::iota(pricing.rank_to_device.begin(), pricing.rank_to_device.end(), Id{0});
  }
  return execution::explain(linked, pricing);
}

std::string explanation_text(const Explanation& e, double predicted_s) {
  const double other = predicted_s / e.step_s - 1;
  std::string out =
      fmt::format("explained: the analytic schedule without jitter, {} a step", seconds(e.step_s));
  if (std::abs(other) >= 0.001)
    out += fmt::format("; the prediction above is {} and differs by {:+.1f}%", seconds(predicted_s),
                       100 * other);
  return fmt::format("{}\n\n{}\n{}\n{}\n{}", out, part_table(e), path_table(e), use_tables(e),
                     gain_table(e));
}

nlohmann::ordered_json explanation_json(const Explanation& e, double predicted_s) {
  using Json = nlohmann::ordered_json;
  Json parts = Json::array(), path = Json::array(), devices = Json::array(), links = Json::array(),
       gains = Json::array();
  for (const execution::ExplainedPart& p : e.parts)
    parts.push_back({{"kind", name_of(p.part.kind)},
                     {"name", p.part.name},
                     {"path_s", p.path},
                     {"latency_s", p.latency},
                     {"mean_rank_s", p.ranks}});
  for (const Stretch& s : e.path) {
    Json one{{"what", s.what}, {"rank", s.rank}, {"ranks", s.ranks}};
    if (s.micro_batch >= 0)
      one.update(Json{{"micro_batch", s.micro_batch}, {"from", s.from}, {"to", s.to}});
    one.update(Json{{"ops", s.ops},
                    {"start_s", s.start},
                    {"seconds", s.seconds()},
                    {"communication_s", s.communication_s},
                    {"host_s", s.host_s}});
    path.push_back(std::move(one));
  }
  for (const execution::DeviceUse& d : e.devices)
    devices.push_back({{"kind", d.kind},
                       {"role", d.role},
                       {"first_rank", d.rank},
                       {"ranks", d.ranks},
                       {"busy", d.busy}});
  for (const execution::LinkUse& l : e.links)
    links.push_back({{"links", l.role},
                     {"first", l.first},
                     {"number", l.count},
                     {"bytes", l.bytes},
                     {"bytes_per_s", l.bandwidth.value},
                     {"used", l.utilisation}});
  for (const execution::Gain& g : e.gains)
    gains.push_back({{"resource", g.resource},
                     {"step_time_s", g.seconds},
                     {"saved", 1 - g.seconds / e.step_s}});
  return {{"step_time_s", e.step_s},
          {"prediction_differs_by", predicted_s / e.step_s - 1},
          {"steps", e.steps.steady},
          {"bubble_fraction", e.bubble_fraction},
          {"exposed_comm_s", e.exposed_comm_s},
          {"parts", std::move(parts)},
          {"critical_path", std::move(path)},
          {"devices", std::move(devices)},
          {"links", std::move(links)},
          {"ten_percent_more", std::move(gains)}};
}

}  // namespace rehearse::study
