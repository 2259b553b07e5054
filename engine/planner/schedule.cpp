// See schedule.h.
#include "engine/planner/schedule.h"

namespace rehearse {

double eq7_seconds(int micro_batches, int stages, int layers, double step, double transfer) {
  return static_cast<double>(stages) / layers * micro_batches * step +
         (micro_batches - 1) * transfer;
}

std::optional<int> eq7_micro_batches(int stages, int layers, double step, double transfer,
                                     const std::function<bool(int)>& fits) {
  std::optional<int> best;
  for (const int m : eq7_choices)
    if ((!fits || fits(m)) && (!best || eq7_seconds(m, stages, layers, step, transfer) <
                                            eq7_seconds(*best, stages, layers, step, transfer)))
      best = m;
  return best;
}

double flushed_seconds(int micro_batches, int stages, double turn, double transfer) {
  return (micro_batches + stages - 1) * turn + 2 * (stages - 1) * transfer;
}

}  // namespace rehearse
