#include "engine/base/numbers/quantiles.h"

#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cassert>

namespace rehearse {
namespace {
// Computes in double only. The width of a long double depends on the processor, but a random draw
// must be the same on every machine.
using InDouble = boost::math::policies::policy<boost::math::policies::promote_double<false>>;
}  // namespace

double normal_quantile(double p) {
  assert(p > 0 && p < 1);
  return quantile(boost::math::normal_distribution<double, InDouble>(), p);
}

double student_t95(int degrees_of_freedom) {
  assert(degrees_of_freedom >= 1);
  return quantile(boost::math::students_t_distribution<double, InDouble>(degrees_of_freedom),
                  0.975);
}

}  // namespace rehearse
