// Fits parameters of predictions to measured seconds. The objective is the mean over the rows of
// |ln(predicted / measured)|, rounded off near 0 (pseudo-Huber) so that it has a slope everywhere.
// NLopt minimises it without derivatives: BOBYQA (Powell 2009), for one parameter SBPLX (Rowan
// 1990). Equal input gives equal output.
//
// The error of rows that a fit has not seen comes from cross-validation: the rows are dealt to
// folds in turn, and each fold is predicted by a fit to the others. Fewer than ten rows are left
// out one by one.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/calibration/identify.h"

namespace rehearse::calibration {

struct Parameter {
  std::string name = {};
  double start = 0, least = 0, most = 1;
  double scale = 1;  // a change of this size matters; > 0
};

struct Problem {
  std::vector<Parameter> parameters = {};
  std::vector<double> measured = {};  // seconds of each row
  /// Seconds that a row is predicted to take with these values of the parameters.
  std::function<double(std::size_t row, std::span<const double> values)> predict = {};
  int folds = 5;
  int evaluations = 200;  // of all rows, the most for one fit
  std::function<void(const std::string&)> tell = [](const std::string&) {};  // progress
};

/// What the rows say about one parameter.
struct Estimate {
  double value = 0;     // `start` where the parameter is not fitted
  bool fitted = false;  // otherwise the notes of the Fit say why not
  /// Standard error by the jackknife over the folds (Efron and Tibshirani 1993, chapter 11).
  double spread = 0;
  bool at_bound = false;  // the fit would go beyond the range of the parameter
};

struct Fit {
  std::vector<Estimate> estimates = {};  // of each parameter
  Identified identified = {};            // at the fitted values
  std::vector<double> predicted = {};    // seconds of each row at the fitted values
  /// Means of |predicted / measured - 1|: at the start values, at the fitted ones, and of rows that
  /// a fit had not seen.
  double at_start = 0, fitted = 0, cross_validated = 0;
  int folds = 0;
};

/// Throws InputError when there are fewer than two rows, or not more than parameters that they
/// show, and what `predict` throws.
Fit fit(const Problem& problem);

/// The mean of |predicted / measured - 1|. Both have the same length, at least 1.
double mean_error(std::span<const double> predicted, std::span<const double> measured);

/// What the rows cannot say, and estimates to doubt, in sentences. `rows`: what rows are called.
std::vector<std::string> notes(const Problem& problem, const Fit& fit, const std::string& rows);

}  // namespace rehearse::calibration
