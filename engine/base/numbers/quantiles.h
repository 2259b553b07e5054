// Quantiles of the normal and Student's t distributions, by Boost.Math. They have a file of their
// own because Boost.Math's headers are slow to compile.
#pragma once

namespace rehearse {

/// Quantile function of the standard normal distribution, p in (0, 1).
double normal_quantile(double p);

/// Two-sided 95% quantile of Student's t distribution; `degrees_of_freedom` must be at least 1.
double student_t95(int degrees_of_freedom);

}  // namespace rehearse
