#include "cli/study/interval.h"

#include <algorithm>
#include <cmath>

#include "engine/base/config.h"
#include "engine/base/data_dir.h"

namespace rehearse::cli {
namespace {

/// |ln(predicted / measured)| of the rows of step times that are (not) used to fit.
std::vector<double> distances(const std::vector<Validation>& all, bool calibrates) {
  std::vector<double> out;
  for (const Validation& v : all)
    for (const Prediction& p : v.rows)
      if (!v.set->collective && p.refusal.empty() && p.row->calibrates == calibrates)
        out.push_back(std::abs(std::log(p.seconds / p.row->measured)));
  return out;
}

}  // namespace

CalibrationError calibration_error() {
  const Config file = Config::load((data_dir() / "validation" / "interval.toml").string());
  CalibrationError out;
  out.level = file.number("level", std::nullopt, between(0.5, 0.999));
  out.factor = file.number("factor", std::nullopt, between(1, 100));
  file.finish();
  return out;
}

std::optional<CalibrationError> fitted_error(const std::vector<Validation>& all, double level) {
  std::vector<double> rows = distances(all, true);
  if (rows.empty()) return std::nullopt;
  std::sort(rows.begin(), rows.end());
  const auto at = static_cast<std::size_t>(std::ceil(level * static_cast<double>(rows.size())));
  return CalibrationError{.level = level,
                          .factor = std::exp(rows[std::max<std::size_t>(at, 1) - 1])};
}

std::optional<double> coverage(const std::vector<Validation>& all, const CalibrationError& error) {
  const std::vector<double> rows = distances(all, false);
  if (rows.empty()) return std::nullopt;
  const auto inside = std::count_if(rows.begin(), rows.end(), [&](double distance) {
    return distance <= std::log(error.factor);
  });
  return static_cast<double>(inside) / static_cast<double>(rows.size());
}

}  // namespace rehearse::cli
