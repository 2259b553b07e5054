#include "engine/calibration/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlopt.hpp>
#include <numeric>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/numbers/numbers.h"

namespace rehearse::calibration {
namespace {

constexpr double rounded_off = 0.01;  // |ln(predicted / measured)| below which it is a parabola
constexpr double difference = 0.02;   // of a parameter, for its sensitivity
constexpr double wide_step = 0.3;     // of the optimiser: a factor of about 1.6
constexpr double near_step = 0.02;    // the same, near the minimum
constexpr int most_doubled = 6;       // times that a hidden parameter is doubled
constexpr int most_rounds = 3;        // of choosing what to fit
constexpr std::size_t few_rows = 10;  // that are left out one by one
constexpr double wide = 0.5;          // spread / value of an estimate that says little
constexpr double near_bound = 1e-3;   // of the scale

using Rows = std::vector<std::size_t>;
using Values = std::vector<double>;

Values predicted(const Problem& problem, const Rows& rows, const Values& values) {
  Values out;
  for (const std::size_t row : rows) out.push_back(problem.predict(row, values));
  return out;
}

double objective(const Problem& problem, const Rows& rows, const Values& values) {
  double sum = 0;
  for (const std::size_t row : rows) {
    const double off = std::log(problem.predict(row, values) / problem.measured[row]) / rounded_off;
    sum += rounded_off * (std::sqrt(1 + off * off) - 1);
  }
  return sum / static_cast<double>(rows.size());
}

bool has(const std::vector<std::size_t>& all, std::size_t one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

Rows all_rows(const Problem& problem) {
  Rows out(problem.measured.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

Values starts(const Problem& problem) {
  Values out;
  for (const Parameter& p : problem.parameters) out.push_back(p.start);
  return out;
}

Sensitivities sensitivities(const Problem& problem, const Values& at) {
  const Rows rows = all_rows(problem);
  const Values base = predicted(problem, rows, at);
  Sensitivities out(rows.size(), Values(at.size()));
  for (std::size_t c = 0; c < at.size(); ++c) {
    const Parameter& p = problem.parameters[c];
    Values moved = at;
    const double unit = std::max(at[c], p.scale);  // a value of 0 has no logarithm
    const double step = difference * unit;
    moved[c] += at[c] + step <= p.most ? step : -step;
    const Values seconds = predicted(problem, rows, moved);
    for (std::size_t r = 0; r < rows.size(); ++r)
      out[r][c] = std::log(seconds[r] / base[r]) / ((moved[c] - at[c]) / unit);
  }
  return out;
}

/// Minimises the objective over `rows` from `values` on. Only `free` parameters move. The optimiser
/// sees ln(1 + value / scale): equal steps are equal factors, and 0 is allowed.
class Search {
 public:
  /// `what`: of the progress.
  Search(const Problem& problem, const Rows& rows, const std::vector<std::size_t>& free,
         Values values, std::string what)
      : problem_(problem),
        rows_(rows),
        free_(free),
        values_(std::move(values)),
        what_(std::move(what)) {}

  const Values& values() const { return values_; }
  /// Moves `values` to the best that the algorithm finds; `step` is its first.
  void run(nlopt::algorithm algorithm, double step) {
    if (free_.empty() || evaluations_ >= problem_.evaluations) return;
    nlopt::opt optimiser(algorithm, static_cast<unsigned>(free_.size()));
    Values x, least, most;
    for (const std::size_t i : free_) {
      const Parameter& p = problem_.parameters[i];
      x.push_back(std::log1p(values_[i] / p.scale));
      least.push_back(std::log1p(p.least / p.scale));
      most.push_back(std::log1p(p.most / p.scale));
    }
    optimiser.set_lower_bounds(least);
    optimiser.set_upper_bounds(most);
    optimiser.set_initial_step(step);
    optimiser.set_xtol_rel(1e-4);
    optimiser.set_ftol_rel(1e-3);
    optimiser.set_maxeval(problem_.evaluations - evaluations_);
    optimiser.set_min_objective([](const Values& at, Values&,
                                   void* self) { return static_cast<Search*>(self)->evaluate(at); },
                                this);
    double least_objective = 0;
    try {
      optimiser.optimize(x, least_objective);
    } catch (const nlopt::roundoff_limited&) {  // x is the best that was found
    }
    place(x);
  }

 private:
  double evaluate(const Values& at) {
    problem_.tell(fmt::format("{}: evaluation {}", what_, ++evaluations_));
    place(at);
    return objective(problem_, rows_, values_);
  }
  void place(const Values& x) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      const Parameter& p = problem_.parameters[free_[i]];
      values_[free_[i]] = std::clamp(std::expm1(x[i]) * p.scale, p.least, p.most);
    }
  }

  const Problem& problem_;
  const Rows& rows_;
  const std::vector<std::size_t>& free_;
  Values values_;
  std::string what_;
  int evaluations_ = 0;
};

/// SBPLX comes past kinks, where BOBYQA stops; BOBYQA, which needs two parameters, ends closer to
/// the minimum.
nlopt::algorithm polishing(const std::vector<std::size_t>& free) {
  return free.size() == 1 ? nlopt::LN_SBPLX : nlopt::LN_BOBYQA;
}

/// The values that minimise the objective over all rows, `from` these values of the `free`
/// parameters on; the others have their start values.
Values minimise(const Problem& problem, const std::vector<std::size_t>& free, const Values& from) {
  const Rows rows = all_rows(problem);
  Values start = starts(problem);
  for (const std::size_t i : free) start[i] = from[i];
  Search search(problem, rows, free, std::move(start), "fit");
  search.run(nlopt::LN_SBPLX, wide_step);
  search.run(polishing(free), near_step);
  return search.values();
}

/// The start values. A parameter without effect may be hidden because it is far too small, as the
/// seconds of a host that the device always waits less for. Such a one is doubled while that helps.
Values awake(const Problem& problem, const std::vector<std::size_t>& without_effect) {
  const Rows rows = all_rows(problem);
  Values out = starts(problem);
  double least = objective(problem, rows, out);
  for (const std::size_t i : without_effect) {
    const Parameter& p = problem.parameters[i];
    Values tried = out;
    for (int doubled = 1; doubled <= most_doubled; ++doubled) {
      tried[i] = std::min(p.most, std::ldexp(p.scale, doubled));
      const double reached = objective(problem, rows, tried);
      if (reached < least) {
        least = reached;
        out = tried;
      }
    }
  }
  return out;
}

struct Folds {
  std::vector<Values> values = {};  // of each fold
  double error = 0;                 // of the rows that each fold left out
};

/// Each fold is fitted from the values of the fit to all rows on, which are near its own.
Folds cross_validate(const Problem& problem, const std::vector<std::size_t>& free,
                     const Values& near) {
  const std::size_t count = problem.measured.size();
  const std::size_t folds =
      count < few_rows ? count : std::min(count, static_cast<std::size_t>(problem.folds));
  Folds out;
  for (std::size_t fold = 0; fold < folds; ++fold) {
    Rows seen, left_out;
    for (std::size_t r = 0; r < count; ++r) (r % folds == fold ? left_out : seen).push_back(r);
    Search search(problem, seen, free, near, fmt::format("fold {} of {}", fold + 1, folds));
    search.run(polishing(free), near_step);
    out.values.push_back(search.values());
    for (const std::size_t r : left_out)
      out.error += std::abs(problem.predict(r, out.values.back()) / problem.measured[r] - 1) /
                   static_cast<double>(count);
  }
  return out;
}

/// "a, b and c".
std::string list_of(std::vector<std::string> names) {
  const std::string last = std::move(names.back());
  names.pop_back();
  return names.empty() ? last : fmt::format("{} and {}", fmt::join(names, ", "), last);
}

/// Each fold needs as many rows as parameters.
void check_rows(const Problem& problem, const std::vector<std::size_t>& free) {
  if (free.size() < problem.measured.size()) return;
  std::vector<std::string> names;
  for (const std::size_t i : free) names.push_back(problem.parameters[i].name);
  throw InputError(fmt::format(
      "{} measurements show {} parameters ({}), and cross-validation needs one measurement more: "
      "measure more, or name fewer with --fit",
      problem.measured.size(), free.size(), list_of(std::move(names))));
}

double jackknife(const std::vector<Values>& folds, std::size_t parameter) {
  const auto n = static_cast<double>(folds.size());
  double mean = 0, sum = 0;
  for (const Values& fold : folds) mean += fold[parameter] / n;
  for (const Values& fold : folds) sum += std::pow(fold[parameter] - mean, 2);
  return std::sqrt((n - 1) / n * sum);
}

}  // namespace

double mean_error(std::span<const double> predicted, std::span<const double> measured) {
  double sum = 0;
  for (std::size_t r = 0; r < predicted.size(); ++r)
    sum += std::abs(predicted[r] / measured[r] - 1);
  return sum / static_cast<double>(predicted.size());
}

Fit fit(const Problem& problem) {
  if (problem.measured.size() < 2)
    throw InputError(fmt::format("{} to fit to; cross-validation needs at least 2",
                                 problem.measured.empty() ? "no row" : "only one row"));
  const Rows rows = all_rows(problem);
  Values start = starts(problem);
  Fit out;
  out.at_start = mean_error(predicted(problem, rows, start), problem.measured);
  out.identified = identify(sensitivities(problem, start));
  if (!out.identified.without_effect.empty()) {
    start = awake(problem, out.identified.without_effect);
    out.identified = identify(sensitivities(problem, start));
  }
  // At the fitted values other parameters may show, and others may look alike.
  std::vector<std::size_t> free = out.identified.told_apart;
  Values values;
  for (int round = 0; round < most_rounds; ++round) {
    check_rows(problem, free);
    values = minimise(problem, free, start);
    out.identified = identify(sensitivities(problem, values));
    std::vector<std::size_t> next = out.identified.told_apart;
    for (const std::size_t i : out.identified.without_effect)
      if (has(free, i)) next.push_back(i);
    std::sort(next.begin(), next.end());
    if (next == free) break;
    if (round + 1 < most_rounds) free = std::move(next);
  }
  out.predicted = predicted(problem, rows, values);
  out.fitted = mean_error(out.predicted, problem.measured);
  const Folds folds = cross_validate(problem, free, values);
  out.cross_validated = folds.error;
  out.folds = static_cast<int>(folds.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& p = problem.parameters[i];
    const double margin = near_bound * p.scale;
    Estimate& one = out.estimates.emplace_back();
    one.value = values[i];
    one.fitted = has(free, i);
    if (!one.fitted) continue;
    one.spread = jackknife(folds.values, i);
    one.at_bound = values[i] <= p.least + margin || values[i] >= p.most - margin;
  }
  return out;
}

std::vector<std::string> notes(const Problem& problem, const Fit& fit, const std::string& rows) {
  const auto name = [&](std::size_t i) -> const std::string& { return problem.parameters[i].name; };
  std::vector<std::string> out;
  for (const bool fitted : {false, true}) {
    std::vector<std::string> names;
    for (const std::size_t i : fit.identified.without_effect)
      if (fit.estimates[i].fitted == fitted) names.push_back(name(i));
    if (names.empty()) continue;
    const bool one = names.size() == 1;
    out.push_back(fmt::format("{}: {} the time of none of these {}{}", list_of(names),
                              one ? "it changes" : "they change", rows,
                              fitted ? " at the fitted values"
                              : one  ? "; it stays at its start value"
                                     : "; they stay at their start values"));
  }
  for (const Group& group : fit.identified.groups) {
    std::vector<std::string> names;
    for (const std::size_t i : group.members) names.push_back(name(i));
    out.push_back(fmt::format("{}: these {} only show a weighted sum of them; {}", list_of(names),
                              rows,
                              fit.estimates[group.dropped].fitted
                                  ? "each can take another value if the others make up for it"
                                  : name(group.dropped) + " stays at its start value"));
  }
  for (std::size_t i = 0; i < fit.estimates.size(); ++i) {
    const Estimate& one = fit.estimates[i];
    if (!one.fitted) continue;
    if (one.at_bound)
      out.push_back(
          fmt::format("{}: {:g} is the end of its range; the {} ask for more, so another "
                      "number may be wrong",
                      name(i), one.value, rows));
    if (one.spread > wide * one.value)
      out.push_back(
          fmt::format("{}: the {} hardly determine it; folds move it by {}", name(i), rows,
                      one.value > 0 ? percent(one.spread / one.value, 0) : "more than its value"));
  }
  return out;
}

}  // namespace rehearse::calibration
