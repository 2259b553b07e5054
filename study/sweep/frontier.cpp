// The best points of a sweep by one metric, and by several: the frontier (Pareto, Manuale di
// economia politica, 1906).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "study/sweep/sweep.h"

namespace rehearse::study {
namespace {

struct Contender {
  std::size_t at = 0;
  std::vector<double> figures = {};  // by metric; the least is the best
};

/// Those that have all the metrics, the best by the first one first.
std::vector<Contender> contenders(const std::vector<Row>& results, const std::vector<Metric>& by) {
  check_currency(results, by);
  std::vector<Contender> out;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (auto figures = figures_of(results[i], by)) {
      for (std::size_t j = 0; j < by.size(); ++j)
        if (by[j].most) (*figures)[j] *= -1;
      out.push_back({.at = i, .figures = std::move(*figures)});
    }
  std::stable_sort(out.begin(), out.end(),
                   [](const Contender& a, const Contender& b) { return a.figures < b.figures; });
  return out;
}

std::vector<std::size_t> places_of(const std::vector<Contender>& contenders) {
  std::vector<std::size_t> out;
  for (const Contender& one : contenders) out.push_back(one.at);
  return out;
}

bool preferable(const Contender& a, const Contender& b) {
  for (std::size_t i = 0; i < a.figures.size(); ++i)
    if (a.figures[i] > b.figures[i]) return false;
  return a.figures != b.figures;
}

}  // namespace

std::vector<Metric> metrics_named(Question question, const std::vector<std::string>& names,
                                  const std::string& flag) {
  const std::vector<Metric>& all = metrics(question);
  if (names.empty()) return {all.front()};
  std::vector<Metric> out;
  for (const std::string& name : names) {
    const auto is = [&](const Metric& m) { return name == m.name; };
    if (std::any_of(out.begin(), out.end(), is))
      throw InputError(fmt::format("{} {} stands there twice", flag, name));
    const auto found = std::find_if(all.begin(), all.end(), is);
    if (found == all.end()) {
      std::vector<std::string> known;
      for (const Metric& one : all) known.emplace_back(one.name);
      throw InputError(fmt::format("{} {}: what = \"{}\" ranks by {}", flag, name,
                                   name_of(question), fmt::join(known, ", ")));
    }
    out.push_back(*found);
  }
  return out;
}

std::optional<std::vector<double>> figures_of(const Row& row, const std::vector<Metric>& by) {
  std::vector<double> out;
  for (const Metric& metric : by) {
    if (row.metrics.is_null()) return std::nullopt;
    const auto found = row.metrics.find(metric.name);
    if (found == row.metrics.end() || !found->is_number()) return std::nullopt;
    out.push_back(found->get<double>());
  }
  return out;
}

void check_currency(const std::vector<Row>& results, const std::vector<Metric>& by) {
  for (const Metric& metric : by) {
    if (!std::string_view(metric.name).starts_with("cost")) continue;
    std::set<std::string> currencies;
    for (const Row& row : results)
      if (figures_of(row, {metric}))
        currencies.insert(row.metrics.value("currency", std::string()));
    if (currencies.size() > 1)
      throw InputError(
          fmt::format("points have a {} in {}, which cannot be compared; "
                      "cluster.prices states prices in one currency",
                      metric.name, fmt::join(currencies, " and in ")));
  }
}

std::vector<std::size_t> ranking(const std::vector<Row>& results, const Metric& by) {
  return places_of(contenders(results, {by}));
}

std::vector<std::size_t> frontier(const std::vector<Row>& results, const std::vector<Metric>& by) {
  std::vector<Contender> best;
  // What is preferable to a contender stands before it.
  for (Contender& one : contenders(results, by))
    if (std::none_of(best.begin(), best.end(),
                     [&](const Contender& other) { return preferable(other, one); }))
      best.push_back(std::move(one));
  return places_of(best);
}

}  // namespace rehearse::study
