#include "study/calibration/calibration_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/units.h"

namespace rehearse::study {
namespace {

constexpr double absurd = 100;      // times the prediction, or a part of it
constexpr double plausible = 5;     // the same
constexpr double impossible = 0.8;  // of the time at full rates; predictions may count too much
constexpr double not_at_all = std::numeric_limits<double>::infinity();

/// A column in another unit: its values, or the times and sizes that they stand for, times `times`.
struct OtherUnit {
  const char* name = "";
  double times = 1;
  const char* advice = "";
};
constexpr std::array time_units{OtherUnit{"milliseconds", 1e-3, "divide it by 1e3"},
                                OtherUnit{"microseconds", 1e-6, "divide it by 1e6"},
                                OtherUnit{"nanoseconds", 1e-9, "divide it by 1e9"},
                                OtherUnit{"minutes", 60, "multiply it by 60"},
                                OtherUnit{"hours", 3600, "multiply it by 3600"}};
constexpr std::array size_units{OtherUnit{"a thousand times the bytes", 1e3, "as kB for B"},
                                OtherUnit{"a million times the bytes", 1e6, "as MB for B"},
                                OtherUnit{"a thousandth of the bytes", 1e-3, "as kB for MB"},
                                OtherUnit{"a millionth of the bytes", 1e-6, "as B for MB"}};

/// The mean of |ln(measured / predicted)|; `not_at_all` when a row is not plausible.
template <class Predicted>
double distance(const std::vector<CalibratedRow>& rows, double times, Predicted predicted) {
  double sum = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double apart = std::abs(std::log(rows[r].measured * times / predicted(r)));
    if (!(apart <= std::log(plausible))) return not_at_all;
    sum += apart;
  }
  return sum;
}

struct Reading {
  const char* column = "";
  OtherUnit unit = {};
  double distance = not_at_all;
};

/// The unit with which all rows are plausible, the nearest to the predictions.
std::optional<Reading> other_reading(const RowPredictor& predictor,
                                     const std::vector<CalibratedRow>& rows) {
  Reading best;
  const auto consider = [&](const Reading& one) {
    if (one.distance < best.distance) best = one;
  };
  for (const OtherUnit& unit : time_units)
    consider({"seconds", unit,
              distance(rows, unit.times, [&](std::size_t r) { return rows[r].at_start; })});
  if (predictor.resized)
    for (const OtherUnit& unit : size_units)
      consider({"collective.bytes", unit, distance(rows, 1, [&](std::size_t r) {
                  return predictor.resized(r, unit.times);
                })});
  if (best.distance == not_at_all) return std::nullopt;
  return best;
}

std::string names_text(const std::vector<CalibratedRow>& rows,
                       const std::vector<std::size_t>& these) {
  const std::size_t others = these.size() - 1;
  return fmt::format("row \"{}\"{}", rows[these[0]].name,
                     others == 0   ? ""
                     : others == 1 ? " and another"
                                   : fmt::format(" and {} others", others));
}

std::string ratio_text(const CalibratedRow& row) {
  const std::string measured = "the measured " + to_text(Seconds(row.measured)),
                    predicted = "the predicted " + to_text(Seconds(row.at_start));
  const double ratio = row.measured / row.at_start;
  return ratio > 1 ? fmt::format("{} is {:.0f} times {}", measured, ratio, predicted)
                   : fmt::format("{} is {:.0f} times {}", predicted, 1 / ratio, measured);
}

}  // namespace

void doubt_units(const CalibrationQuestion& question, const RowPredictor& predictor,
                 Calibration& out) {
  std::vector<std::size_t> strange, too_fast;  // rows
  double least_of_first = 0;
  for (std::size_t r = 0; r < out.rows.size(); ++r) {
    const CalibratedRow& row = out.rows[r];
    const double ratio = row.measured / row.at_start;
    if (predictor.table && (ratio > absurd || ratio < 1 / absurd)) strange.push_back(r);
    const double least = predictor.least ? predictor.least(r) : 0;
    if (row.measured >= impossible * least) continue;
    if (too_fast.empty()) least_of_first = least;
    too_fast.push_back(r);
  }
  if (strange.empty() && too_fast.empty()) return;
  const CalibratedRow& first = out.rows[strange.empty() ? too_fast[0] : strange[0]];
  if (predictor.table)
    if (const auto reading = other_reading(predictor, out.rows))
      throw InputError(
          fmt::format("{}: row \"{}\": {}; all rows are plausible if column \"{}\" has {}: {}",
                      question.data, first.name, ratio_text(first), reading->column,
                      reading->unit.name, reading->unit.advice));
  const std::string check =
      predictor.table ? "check that job, batch and the unit of column \"seconds\" are those of the "
                        "measurement"
                      : "check that --device names the device of the measurement";
  if (!too_fast.empty())
    out.notes.push_back(fmt::format(
        "{}: the measured {} is less than the {} that devices and links need at their full rates; "
        "{}",
        names_text(out.rows, too_fast), to_text(Seconds(out.rows[too_fast[0]].measured)),
        to_text(Seconds(least_of_first)), check));
  else
    out.notes.push_back(
        fmt::format("{}: {}; {}", names_text(out.rows, strange), ratio_text(first), check));
}

}  // namespace rehearse::study
