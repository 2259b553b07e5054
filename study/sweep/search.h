// A search of a sweep: computes some of its points, which an optimiser chooses.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "study/sweep/sweep.h"

namespace rehearse::study {

struct Search {
  std::vector<Metric> by = {};  // what the points shall be good by
  int budget = 0;               // how many may be known in the end; equal points are one
  /// Runs search/suggest.py on a STATE.json of this text, and returns what it printed.
  std::function<std::string(const std::string& state)> choose = {};
};

/// Computes points until as many are known as the budget has, or all. Points that failed earlier
/// are tried once more. Returns the results that are known, in the order of the points. Throws
/// InputError for a sweep that needs all its points, and what compute, check_currency and `choose`
/// throw.
std::vector<Row> search(const Sweep& sweep, const std::vector<Point>& all, const Search& how,
                        const Work& work, Rows& rows);

}  // namespace rehearse::study
