// Finds seconds and sizes in a wrong unit before constants are fitted to them.
#pragma once
#include "study/calibration/calibration.h"

namespace rehearse::study {

/// Compares the measured seconds of all rows of `out` with those predicted at the start. Throws
/// InputError when they are absurd and another unit of a column makes all of them plausible. Adds a
/// note when they are absurd, or below what devices and links need at their full rates, and no unit
/// explains it.
void doubt_units(const CalibrationQuestion& question, const RowPredictor& predictor,
                 Calibration& out);

}  // namespace rehearse::study
