// The files that `rehearse calibrate` writes, as text. Each is complete: keys that were not fitted
// have the values of what the fit started from.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/software/library.h"
#include "engine/software/software.h"
#include "study/calibration/calibration.h"

namespace rehearse::study {

/// A [[device]] table for a platform file. `comments`: lines above it.
std::string device_text(const cluster::DeviceKind& kind, const std::vector<std::string>& comments);
/// A software file with the fitted keys of [host], over `base`. `measured`: none keeps that of
/// `base`.
std::string software_text(const std::string& base, const std::string& source,
                          const std::vector<CalibratedKey>& keys,
                          const std::vector<std::string>& comments,
                          const std::optional<software::Measured>& measured = {});
/// A library file.
std::string library_text(const software::Library& library, const std::string& source,
                         const std::vector<std::string>& comments);
/// `value` with four digits, as fitted numbers are written.
double rounded(double value);

}  // namespace rehearse::study
