// Quantiles of the distributions that draws and intervals come from, by Boost.Math. A file of their
// own keeps its headers, slow to compile, out of every other.
#pragma once

namespace rehearse {

/// Quantile function of the standard normal distribution, p in (0, 1).
double normal_quantile(double p);

/// Two-sided 95% quantile of Student's t; at least one degree of freedom.
double student_t95(int degrees_of_freedom);

}  // namespace rehearse
