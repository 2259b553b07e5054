#include "study/calibration/interval.h"

#include "engine/base/files/config.h"
#include "engine/base/files/data_dir.h"

namespace rehearse::study {

CalibrationError calibration_error() {
  const Config file = Config::load((data_dir() / "validation" / "interval.toml").string());
  CalibrationError out;
  out.level = file.number("level", std::nullopt, between(0.5, 0.999));
  out.factor = file.number("factor", std::nullopt, between(1, 100));
  file.finish();
  return out;
}

}  // namespace rehearse::study
