// How far predictions are from measurements: the part of a result's uncertainty that more seeds
// cannot show.
#pragma once
#include <optional>
#include <vector>

#include "cli/study/study.h"
#include "cli/study/validation.h"

namespace rehearse::cli {

/// With probability `level`, a measured step takes between predicted / factor and predicted x
/// factor. Holds for calibrated results whose local times come from the device table.
struct CalibrationError {
  double level = 0.9, factor = 1;
};

/// As validation/interval.toml states it. Throws InputError.
CalibrationError calibration_error();

/// The factor that holds `level` of the rows of step times that constants were fitted to: the
/// quantile of |ln(predicted / measured)|. Empty: no such row was predicted.
std::optional<CalibrationError> fitted_error(const std::vector<Validation>& all, double level);

/// The fraction of the other rows of step times that lie inside; empty: there are none.
std::optional<double> coverage(const std::vector<Validation>& all, const CalibrationError& error);

}  // namespace rehearse::cli
