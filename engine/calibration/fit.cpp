#include "engine/calibration/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlopt.hpp>
#include <numeric>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/numbers.h"

namespace rehearse::calibration {
namespace {

constexpr double rounded_off = 0.01;  // |ln(predicted / measured)| below which it is a parabola
constexpr double difference = 0.02;   // of a parameter's scale, for its sensitivity
constexpr double first_step = 0.1;    // of the optimiser, in scales
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
    const double step = difference * p.scale;
    moved[c] += at[c] + step <= p.most ? step : -step;
    const Values seconds = predicted(problem, rows, moved);
    for (std::size_t r = 0; r < rows.size(); ++r)
      out[r][c] = std::log(seconds[r] / base[r]) / ((moved[c] - at[c]) / p.scale);
  }
  return out;
}

/// The values that minimise the objective over `rows`; only `free` parameters move.
Values minimise(const Problem& problem, const Rows& rows, const std::vector<std::size_t>& free,
                const std::string& what) {
  Values values = starts(problem);
  if (free.empty()) return values;
  nlopt::opt optimiser(free.size() == 1 ? nlopt::LN_SBPLX : nlopt::LN_BOBYQA,
                       static_cast<unsigned>(free.size()));
  Values x, least, most;  // in scales
  for (const std::size_t i : free) {
    const Parameter& p = problem.parameters[i];
    x.push_back(p.start / p.scale);
    least.push_back(p.least / p.scale);
    most.push_back(p.most / p.scale);
  }
  optimiser.set_lower_bounds(least);
  optimiser.set_upper_bounds(most);
  optimiser.set_initial_step(first_step);
  optimiser.set_xtol_rel(1e-5);
  optimiser.set_maxeval(problem.evaluations);
  int evaluations = 0;
  const auto place = [&](const Values& scaled) {
    for (std::size_t i = 0; i < free.size(); ++i)
      values[free[i]] =
          std::clamp(scaled[i] * problem.parameters[free[i]].scale,
                     problem.parameters[free[i]].least, problem.parameters[free[i]].most);
  };
  std::function<double(const Values&)> evaluate = [&](const Values& scaled) {
    problem.tell(fmt::format("{}: evaluation {}", what, ++evaluations));
    place(scaled);
    return objective(problem, rows, values);
  };
  optimiser.set_min_objective(
      [](const Values& scaled, Values&, void* self) {
        return (*static_cast<std::function<double(const Values&)>*>(self))(scaled);
      },
      &evaluate);
  double best = 0;
  try {
    optimiser.optimize(x, best);
  } catch (const nlopt::roundoff_limited&) {  // x is the best that was found
  }
  place(x);
  return values;
}

struct Folds {
  std::vector<Values> values = {};  // of each fold
  double error = 0;                 // of the rows that each fold left out
};

Folds cross_validate(const Problem& problem, const std::vector<std::size_t>& free) {
  const std::size_t count = problem.measured.size();
  const std::size_t folds =
      count < few_rows ? count : std::min(count, static_cast<std::size_t>(problem.folds));
  Folds out;
  for (std::size_t fold = 0; fold < folds; ++fold) {
    Rows seen, left_out;
    for (std::size_t r = 0; r < count; ++r) (r % folds == fold ? left_out : seen).push_back(r);
    out.values.push_back(
        minimise(problem, seen, free, fmt::format("fold {} of {}", fold + 1, folds)));
    for (const std::size_t r : left_out)
      out.error += std::abs(problem.predict(r, out.values.back()) / problem.measured[r] - 1) /
                   static_cast<double>(count);
  }
  return out;
}

double jackknife(const std::vector<Values>& folds, std::size_t parameter) {
  const auto n = static_cast<double>(folds.size());
  double mean = 0, sum = 0;
  for (const Values& fold : folds) mean += fold[parameter] / n;
  for (const Values& fold : folds) sum += std::pow(fold[parameter] - mean, 2);
  return std::sqrt((n - 1) / n * sum);
}

bool has(const std::vector<std::size_t>& all, std::size_t one) {
  return std::find(all.begin(), all.end(), one) != all.end();
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
  const Values start = starts(problem);
  Fit out;
  out.before = mean_error(predicted(problem, rows, start), problem.measured);
  out.identified = identify(sensitivities(problem, start));
  std::vector<std::size_t> free = out.identified.told_apart;
  Values values = minimise(problem, rows, free, "fit");
  // At the fitted values other parameters may show: what hid one may be gone.
  out.identified = identify(sensitivities(problem, values));
  if (out.identified.told_apart.size() > free.size()) {
    free = out.identified.told_apart;
    values = minimise(problem, rows, free, "fit");
    out.identified = identify(sensitivities(problem, values));
  }
  out.predicted = predicted(problem, rows, values);
  out.after = mean_error(out.predicted, problem.measured);
  const Folds folds = cross_validate(problem, free);
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
  for (const std::size_t i : fit.identified.without_effect)
    out.push_back(fmt::format(
        "{}: it changes the time of none of these {}{}", name(i), rows,
        fit.estimates[i].fitted ? " at the fitted values" : "; it stays at its start value"));
  for (const Group& group : fit.identified.groups) {
    std::vector<std::string> names;
    for (const std::size_t i : group.members) names.push_back(name(i));
    const std::string last = names.back();
    names.pop_back();
    out.push_back(fmt::format("{} and {}: these {} only show a weighted sum of them; {}",
                              fmt::join(names, ", "), last, rows,
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
                      "number is wrong",
                      name(i), one.value, rows));
    if (one.spread > wide * one.value)
      out.push_back(
          fmt::format("{}: the {} hardly determine it; folds move it by {}", name(i), rows,
                      one.value > 0 ? percent(one.spread / one.value, 0) : "more than its value"));
  }
  return out;
}

}  // namespace rehearse::calibration
