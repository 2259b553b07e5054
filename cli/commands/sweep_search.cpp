#include "cli/commands/sweep_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "cli/console/files.h"
#include "cli/console/python.h"
#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "study/progress.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Of an axis of numbers the next value is nearer than the one after it.
bool is_ordered(const study::Axis& axis) {
  return std::all_of(axis.values.begin(), axis.values.end(),
                     [](const study::AxisValue& value) { return value.label.is_number(); });
}

/// What search/suggest.py has to know about the sweep.
Json state_of(const study::Sweep& sweep, const std::vector<study::Point>& points,
              const SweepSearch& how) {
  Json axes = Json::array(), places = Json::array(), most = Json::array();
  for (const study::Axis& axis : sweep.axes)
    axes.push_back({{"values", axis.values.size()}, {"ordered", is_ordered(axis)}});
  for (const study::Point& point : points) {
    Json& place = places.emplace_back(Json::array());
    for (const study::Axis& axis : sweep.axes) {
      const Json& label = point.values.at(axis.name);
      const auto found =
          std::find_if(axis.values.begin(), axis.values.end(),
                       [&](const study::AxisValue& value) { return value.label == label; });
      place.push_back(found - axis.values.begin());
    }
  }
  for (const study::Metric& metric : how.by) most.push_back(metric.most);
  return {{"axes", std::move(axes)},
          {"points", std::move(places)},
          {"most", std::move(most)},
          {"budget", how.budget}};
}

/// The figures of a point by the metrics; null: it cannot run, or lacks one of them.
Json figures_of(const study::Row& row, const std::vector<study::Metric>& by) {
  Json out = Json::array();
  for (const study::Metric& metric : by) {
    if (row.metrics.is_null()) return nullptr;
    out.push_back(row.metrics.value(metric.name, Json()));
    if (!out.back().is_number()) return nullptr;
  }
  return out;
}

}  // namespace

void search(const study::Sweep& sweep, const std::vector<study::Point>& all, const SweepSearch& how,
            const study::Work& work, study::Rows& rows) {
  if (sweep.scaling || sweep.vary == study::Vary::alone)
    throw InputError(fmt::format("--search: {} needs all points of its sweep",
                                 sweep.scaling ? "a [scaling]" : "a sweep with vary = \"alone\""));
  std::vector<study::Point> points;  // of equal ones the first
  std::set<std::string> keys;
  for (const study::Point& point : all)
    if (keys.insert(point.key).second) points.push_back(point);
  const TemporaryFolder folder;
  Json state = state_of(sweep, points, how);
  while (true) {
    Json& known = state["known"] = Json::array();
    for (std::size_t i = 0; i < points.size(); ++i)
      if (const auto row = rows.find(points[i].key); row != rows.end())
        known.push_back({{"point", i}, {"figures", figures_of(row->second, how.by)}});
    if (work.progress != nullptr)
      work.progress->say(fmt::format("search: {} of {} points are known, of {} that there are",
                                     known.size(), how.budget, points.size()));
    write_file(folder.file("state.json"), state.dump());
    const Json chosen = Json::parse(
        run_script(how.python, "search/suggest.py", {folder.file("state.json")}), nullptr, false);
    if (!chosen.is_array()) throw BackendError("search/suggest.py printed no list of points");
    if (chosen.empty()) return;
    std::vector<study::Point> next;
    for (const Json& at : chosen) next.push_back(points.at(at.get<std::size_t>()));
    study::compute(sweep, next, work, rows);
  }
}

}  // namespace rehearse::cli
