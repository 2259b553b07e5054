// `rehearse sweep --search`: computes some points of a sweep, which an optimiser chooses.
#pragma once
#include <string>
#include <vector>

#include "study/sweep.h"

namespace rehearse::cli {

struct SweepSearch {
  std::vector<study::Metric> by = {};  // what the points shall be good by
  int budget = 0;                      // how many may be known in the end; equal points are one
  std::string python = {};             // the interpreter that runs search/suggest.py
};

/// Computes points until as many are known as the budget has, or all. Throws InputError for a sweep
/// that needs all its points, and what study::compute throws.
void search(const study::Sweep& sweep, const std::vector<study::Point>& all, const SweepSearch& how,
            const study::Work& work, study::Rows& rows);

}  // namespace rehearse::cli
