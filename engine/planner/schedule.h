// Eq. 6 and 7 of Sun 2026 (section 3.4), as printed. What decides is the predicted step time of
// whole programs (planner.h); these are here to be compared with it.
//
// Eq. 6 asks that a stage compute for as long as it communicates and idles: T_comp = T_comm +
// T_bubble. Taken literally a balanced stage idles or communicates for half of its time; a faster
// plan has T_comp far above the other two.
//
// Eq. 7 picks the number of micro-batches, M* = argmin over {2, 4, 8, 16} of G/L M T_step + (M - 1)
// T_comm. Both terms grow with M: T_step, the time of one micro-batch, is a constant there, and the
// bubble, which shrinks with M, is not. So it picks the smallest M that fits into memory: 2.
#pragma once
#include <array>
#include <functional>
#include <optional>

namespace rehearse {

/// How a stage spends a step, seconds.
struct StageBalance {
  double compute = 0, communication = 0, bubble = 0;
  /// Eq. 6: 0 where it holds.
  double residual() const { return compute - (communication + bubble); }
};

inline constexpr std::array eq7_choices{2, 4, 8, 16};

/// Eq. 7's objective. `stages` G, `layers` L, `step` T_step (forward and backward of one
/// micro-batch), `transfer` T_comm between stages.
double eq7_seconds(int micro_batches, int stages, int layers, double step, double transfer);
/// Eq. 7's M*, among those that `fits` lets pass (memory below 90%; empty: all). Ties: the smaller.
std::optional<int> eq7_micro_batches(int stages, int layers, double step, double transfer,
                                     const std::function<bool(int)>& fits = {});

/// A flushed pipeline (1F1B, GPipe) of equal stages, for comparison: M + G - 1 turns, each a
/// forward and backward of a micro-batch on one stage and a transfer both ways.
double flushed_seconds(int micro_batches, int stages, double turn, double transfer);

}  // namespace rehearse
