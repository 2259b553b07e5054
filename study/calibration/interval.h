// How far predictions are from measurements: the part of a result's uncertainty that more seeds
// cannot show.
#pragma once
namespace rehearse::study {

/// With probability `level`, a measured step takes between predicted / factor and predicted x
/// factor. Holds for calibrated results whose local times come from the device table.
struct CalibrationError {
  double level = 0.9, factor = 1;
};

/// As validation/interval.toml states it. Throws InputError.
CalibrationError calibration_error();

}  // namespace rehearse::study
