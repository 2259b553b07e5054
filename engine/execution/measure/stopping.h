// When a run has shown enough steps. Without randomness it stops at the first period
// (engine/execution/measure/period.h), because all later steps follow from it. With randomness it
// stops when the mean step time is known as precisely as asked.
//
// The interval of the mean comes from batch means: the steady steps are cut into batches of equal
// length, and the means of the batches count as independent values. Steps that influence each other
// (a slow step that delays the next one, lanes that run ahead) do so over a few steps. The batches
// double whenever there are more than ten, so this dependence becomes small, and a run whose step
// times drift has unlike batches and goes on. Batches have an even number of steps, because under
// some methods short and long steps alternate.
#pragma once
#include <span>

namespace rehearse::execution {

struct Stopping {
  bool at_period = false;  // stop at a period; only for runs without randomness
  /// Stop when the half-width of the 95% interval of the mean step time is at most this share of
  /// the mean; 0: never.
  double precision = 0;
  int least = 0;  // number of steps to run in any case, with the warm-up
};

/// The half-width of the 95% interval of the mean, in seconds, by batch means. Infinite when there
/// are fewer than three batches, or when the step times do not fill the last batch.
double half_width95(std::span<const double> step_times);

}  // namespace rehearse::execution
