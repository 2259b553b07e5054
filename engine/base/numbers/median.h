// Medians: what a few outliers do not move.
#pragma once
#include <vector>

namespace rehearse {

/// Of an even number of values the mean of the two in the middle; 0 of none.
double median(std::vector<double> values);
/// Of an even number of values the lower of the two in the middle: one of the values themselves.
/// `values` must not be empty.
double lower_median(std::vector<double> values);
/// Median distance from the median.
double median_deviation(const std::vector<double>& values);

}  // namespace rehearse
