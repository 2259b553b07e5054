#include "study/sweep/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "engine/base/errors.h"
#include "study/progress.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

/// Of an axis of numbers the next value is nearer than the one after it.
bool is_ordered(const Axis& axis) {
  return std::all_of(axis.values.begin(), axis.values.end(),
                     [](const AxisValue& value) { return value.label.is_number(); });
}

/// What search/suggest.py has to know about the sweep.
Json state_of(const Sweep& sweep, const std::vector<Point>& points, const Search& how) {
  Json axes = Json::array(), places = Json::array(), most = Json::array();
  for (const Axis& axis : sweep.axes)
    axes.push_back({{"values", axis.values.size()}, {"ordered", is_ordered(axis)}});
  for (const Point& point : points) {
    Json& place = places.emplace_back(Json::array());
    for (const Axis& axis : sweep.axes) {
      const Json& label = point.values.at(axis.name);
      const auto found = std::find_if(axis.values.begin(), axis.values.end(),
                                      [&](const AxisValue& value) { return value.label == label; });
      place.push_back(found - axis.values.begin());
    }
  }
  for (const Metric& metric : how.by) most.push_back(metric.most);
  return {{"axes", std::move(axes)},
          {"points", std::move(places)},
          {"most", std::move(most)},
          {"budget", how.budget}};
}

/// What is known of the points, as suggest.py reads it.
Json known_of(const std::vector<Point>& points, const Rows& rows, const std::vector<Metric>& by) {
  Json out = Json::array();
  for (std::size_t i = 0; i < points.size(); ++i)
    if (const auto row = rows.find(points[i].key); row != rows.end()) {
      const auto figures = figures_of(row->second, by);
      out.push_back({{"point", i}, {"figures", figures ? Json(*figures) : Json()}});
    }
  return out;
}

}  // namespace

std::vector<Row> search(const Sweep& sweep, const std::vector<Point>& all, const Search& how,
                        const Work& work, Rows& rows) {
  if (sweep.scaling || sweep.vary == Vary::alone)
    throw InputError(fmt::format("search: {} needs all points of its sweep",
                                 sweep.scaling ? "a [scaling]" : "a sweep with vary = \"alone\""));
  std::vector<Point> points;  // of equal ones the first
  std::set<std::string> keys;
  for (const Point& point : all)
    if (keys.insert(point.key).second) points.push_back(point);
  // What failed before may succeed now. What fails in this search is not tried again, or it could
  // go on for ever.
  std::erase_if(rows, [](const auto& row) { return !row.second.failed.empty(); });
  Json state = state_of(sweep, points, how);
  while (true) {
    std::vector<Row> results = results_of(sweep, all, rows);
    std::erase_if(results, [&rows](const Row& row) { return !rows.contains(row.key); });
    check_currency(results, how.by);
    state["known"] = known_of(points, rows, how.by);
    if (work.progress != nullptr)
      work.progress->say(fmt::format("search: {} of {} points are known, of {} that there are",
                                     state["known"].size(), how.budget, points.size()));
    const Json chosen = Json::parse(how.choose(state.dump()), nullptr, false);
    if (!chosen.is_array()) throw BackendError("search/suggest.py printed no list of points");
    if (chosen.empty()) return results;
    std::vector<Point> next;
    for (const Json& at : chosen) next.push_back(points.at(at.get<std::size_t>()));
    compute(sweep, next, work, rows);
  }
}

}  // namespace rehearse::study
