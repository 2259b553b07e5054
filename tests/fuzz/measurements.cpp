// Fuzz target for measurements that a user brings: tables and logs of step times, tables of peaks
// of memory, the output of nccl-tests, traces of PyTorch's profiler. Of the last two, constants are
// fitted.
#include <cmath>

#include "engine/calibration/nccl_tests.h"
#include "engine/calibration/torch_trace.h"
#include "study/calibration/calibration.h"
#include "study/calibration/step_log.h"
#include "study/calibration/validation.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void measurements(std::string_view input) {
  const std::string path = write_input(input, "measurements.csv"), text(input);
  accepts([&] {
    const study::Measurements kind = study::kind_of(text, path);
    // The rows of a table of steps may name any job, and so take long.
    if (kind == study::Measurements::steps) return;
    study::CalibrationQuestion question{.data = path, .text = text, .folds = 2, .evaluations = 10};
    if (kind == study::Measurements::trace)
      question.software = "pytorch-2";
    else
      question.cluster = "dgx-a100:1";
    const study::Calibration fitted = study::calibrate(kind, question);
    for (const study::CalibratedKey& key : fitted.keys)
      expect(std::isfinite(key.calibrated), "a fitted key is a number");
  });
  for (const study::Measured kind : {study::Measured::job, study::Measured::memory})
    for (const bool needs_use : {true, false})
      accepts([&] {
        const CsvTable table = parse_csv(text, path);
        for (const study::ValidationRow& row :
             study::read_measurements(table, path, needs_use, kind))
          expect(row.measured > 0, "what was measured is positive");
      });
  accepts([&] {
    if (study::is_step_log(text)) parse_csv(study::step_table(text, path), path);
  });
  accepts([&] { calibration::read_nccl_output(text, path); });
  accepts([&] { calibration::read_torch_trace(text, path); });
}

}  // namespace rehearse::fuzz
