// Closed forms of the literature, beside which the walk's results are printed.
#pragma once
#include "engine/base/units.h"

namespace rehearse::goodput {

/// Young's interval between two checkpoints, sqrt(2 w M / k), for a checkpoint that all steps wait
/// for during `write` and a mean time `between` failures (Young, CACM 1974, where k = 1).
/// `at_risk`: k, intervals of which a failure loses one half on average; above 1 where some
/// failures destroy the newest checkpoints (docs/faults-semantics.md).
Seconds young(Seconds write, Seconds between, double at_risk = 1);
/// Daly's, Young's - w (Daly, FGCS 2006, first order); at least 0.
Seconds daly(Seconds write, Seconds between, double at_risk = 1);
/// Expected effective training time ratio, (1 - (u + k T / 2) / M) / (1 + w / T): a failure costs
/// the restart u and half of k intervals T (Kokolis et al. 2024, arXiv 2410.21680, equation 2,
/// where k = 1). At least 0.
double expected_ratio(Seconds interval, Seconds write, Seconds between, Seconds restart,
                      double at_risk = 1);

/// Seconds until all processes of so many ranks run again after a failure, without reading state.
/// Cold recovery of FT-HSDP (arXiv 2602.00277): 200 s at 16,384 GPUs, 300 s at 22,000, 600 s at
/// 64,000, 900 s at 98,000; linear between, and beyond. Below 16,384 linear from 60 s at one GPU,
/// which is an assumption.
Seconds restart_time(int ranks);

}  // namespace rehearse::goodput
