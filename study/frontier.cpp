// The frontier of a sweep (Pareto, Manuale di economia politica, 1906).
#include <algorithm>
#include <optional>

#include "study/sweep.h"

namespace rehearse::study {
namespace {

struct Contender {
  std::size_t at = 0;
  std::vector<double> figures = {};  // by metric; the least is the best
};

std::optional<Contender> contender(const std::vector<Row>& results, std::size_t at,
                                   const std::vector<Metric>& by) {
  Contender out{.at = at};
  for (const Metric& metric : by) {
    const auto found = results[at].metrics.find(metric.name);
    if (found == results[at].metrics.end() || !found->is_number()) return std::nullopt;
    out.figures.push_back(found->get<double>() * (metric.most ? -1 : 1));
  }
  return out;
}

bool preferable(const Contender& a, const Contender& b) {
  for (std::size_t i = 0; i < a.figures.size(); ++i)
    if (a.figures[i] > b.figures[i]) return false;
  return a.figures != b.figures;
}

}  // namespace

std::vector<std::size_t> frontier(const std::vector<Row>& results, const std::vector<Metric>& by) {
  std::vector<Contender> all;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (!results[i].metrics.is_null())
      if (auto one = contender(results, i, by)) all.push_back(std::move(*one));
  // What is preferable to a contender stands before it.
  std::stable_sort(all.begin(), all.end(),
                   [](const Contender& a, const Contender& b) { return a.figures < b.figures; });
  std::vector<Contender> best;
  for (Contender& one : all)
    if (std::none_of(best.begin(), best.end(),
                     [&](const Contender& other) { return preferable(other, one); }))
      best.push_back(std::move(one));
  std::vector<std::size_t> out;
  for (const Contender& one : best) out.push_back(one.at);
  return out;
}

}  // namespace rehearse::study
