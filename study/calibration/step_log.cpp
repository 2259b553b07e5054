#include "study/calibration/step_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/numbers/median.h"

namespace rehearse::study {
namespace {

using nlohmann::json;

/// The names under which trainers write the time of a step.
struct Name {
  const char* key = "";
  double unit = 1;  // seconds
};
constexpr std::array names{Name{"step_time_s"},  // rehearse train
                           Name{"step_time"},
                           Name{"step_time_ms", 1e-3},
                           Name{"iteration_time"},
                           Name{"iteration_time_ms", 1e-3},
                           Name{"train_step_timing in s"},      // NeMo
                           Name{"time_metrics/end_to_end(s)"},  // torchtitan
                           Name{"seconds"}};

/// Of a log. The fit is judged by rows that it has not seen, so one row would not do.
constexpr std::size_t most_rows = 5;

std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool is_step_log(std::string_view text) {
  constexpr std::size_t longest = 1 << 16;  // a trace may be one line of gigabytes
  const std::string_view line = first_line(text);
  if (line.size() > longest) return false;
  const json row = json::parse(line, nullptr, false);
  return row.is_object() && !row.contains("traceEvents");
}

std::string step_table(const std::string& text, const std::string& file) {
  std::vector<double> times;
  const Name* found = nullptr;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json row = json::parse(line, nullptr, false);
    if (!row.is_object())
      throw InputError(
          fmt::format("{}:{}: is no JSON object, as the lines before it are", file, number));
    for (const Name& name : names) {
      if ((found != nullptr && found != &name) || !row.contains(name.key)) continue;
      found = &name;
      if (!row[name.key].is_number() || row[name.key].get<double>() <= 0)
        throw InputError(fmt::format("{}:{}: {} = {} must be a positive number", file, number,
                                     name.key, row[name.key].dump()));
      times.push_back(row[name.key].get<double>() * name.unit);
      break;
    }
  }
  if (found == nullptr) {
    std::vector<std::string> known;
    for (const Name& name : names) known.push_back(fmt::format("\"{}\"", name.key));
    throw InputError(fmt::format("{}: no line has the time of a step; calibrate reads {}", file,
                                 fmt::join(known, ", ")));
  }
  const std::size_t first = times.size() / 10, counted = times.size() - first,
                    rows = std::min(most_rows, counted);
  std::string out = "row,seconds\n";
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = first + counted * row / rows, end = first + counted * (row + 1) / rows;
    const auto at = [&](std::size_t i) { return times.begin() + static_cast<std::ptrdiff_t>(i); };
    out +=
        fmt::format("step times {} to {},{:.17g}\n", begin + 1, end, median({at(begin), at(end)}));
  }
  return out;
}

}  // namespace rehearse::study
