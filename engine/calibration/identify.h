// Which parameters measurements can tell apart. The sensitivity of a row to a parameter is
// d ln(seconds) / d ln(parameter). A parameter whose column is almost 0 has no effect on the rows.
// Parameters whose columns point the same way (or whose columns cancel in a sum) change all rows
// alike: the rows show one combination of them, and not each.
//
// Method: singular values of the matrix of columns of length 1. A value near 0 comes with the
// combination of columns that cancels. For two columns with cosine c the smaller value is
// sqrt(1 - |c|). Source: Belsley, Kuh, Welsch, Regression Diagnostics, 1980, chapter 3.
#pragma once
#include <cstddef>
#include <vector>

namespace rehearse::calibration {

/// Sensitivities: a row for each measurement, a column for each parameter.
using Sensitivities = std::vector<std::vector<double>>;

/// Parameters that the rows do not tell apart.
struct Group {
  std::vector<std::size_t> members = {};  // indices of parameters
  std::size_t dropped = 0;                // the member with the least effect
};

struct Identified {
  std::vector<std::size_t> told_apart = {};  // parameters that can be fitted together
  std::vector<std::size_t> without_effect = {};
  std::vector<Group> groups = {};  // one for each parameter that is neither
};

/// A change of 10% of a parameter that moves no row by more than a tenth of this counts as none.
inline constexpr double least_effect = 0.01;
/// The singular value of two columns with a cosine of 0.98.
inline constexpr double least_singular = 0.1414;

/// All rows must have the same length.
Identified identify(const Sensitivities& rows);

}  // namespace rehearse::calibration
