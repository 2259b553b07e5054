// What `rehearse sweep` says about its points: the table of the best, reasons and warnings, JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console/context.h"
#include "study/sweep/sweep.h"

namespace rehearse::cli {

/// What is known of all points, in their order.
struct Whole {
  const study::Sweep& sweep;
  std::vector<study::Row> results;
  std::vector<study::Metric> by;  // several: their frontier is the answer
  std::size_t searched = 0;       // points among which these were chosen; 0: all are there
  bool ranked = true;             // by `by`; false: a scaling's points, in their order
};

/// The best points, at most `top`; of several metrics the frontier; if they are not ranked all
/// points, in their order.
std::string best_table(const Whole& whole, int top);
/// The commonest reasons why points have no result, and the commonest warnings about results.
std::string remarks(const Whole& whole);
/// All points, and which of them are known.
std::string listed(const Whole& whole);
/// The JSON of docs/sweep.md.
nlohmann::ordered_json json_of(const Context& context, const Whole& whole);

}  // namespace rehearse::cli
