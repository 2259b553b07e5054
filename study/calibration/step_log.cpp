#include "study/calibration/step_log.h"

#include <fmt/format.h>

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

/// As `rehearse train` names it. With it, the tokens of a step are known.
constexpr const char* tokens_rate = "tokens_per_s";

/// Of a log. The fit is judged by rows that it has not seen, so one row would not do.
constexpr std::size_t most_rows = 5;

const Name* time_in(const json& row) {
  const auto found =
      std::ranges::find_if(names, [&](const Name& name) { return row.contains(name.key); });
  return found == names.end() ? nullptr : &*found;
}

}  // namespace

bool is_step_log(std::string_view text) {
  // The first steps of a log may have no time. A trace may be one line of gigabytes.
  constexpr std::size_t longest = 1 << 16, first_lines = 100;
  std::size_t lines = 0;
  while (!text.empty() && lines < first_lines) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const json row = line.size() > longest ? json() : json::parse(line, nullptr, false);
    if (!row.is_object()) return false;
    if (time_in(row) != nullptr) return true;
    ++lines;
  }
  return false;
}

std::string step_table(const std::string& text, const std::string& file) {
  std::vector<double> times, tokens;
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
    const Name* const name = time_in(row);
    if (name == nullptr || (found != nullptr && found != name)) continue;
    found = name;
    const json& time = row[name->key];
    if (!time.is_number() || time.get<double>() <= 0)
      throw InputError(fmt::format("{}:{}: {} = {} must be a positive number", file, number,
                                   name->key, time.dump()));
    times.push_back(time.get<double>() * name->unit);
    if (const auto rate = row.find(tokens_rate); rate != row.end() && rate->is_number())
      tokens.push_back(times.back() * rate->get<double>());
  }
  const std::size_t first = times.size() / 10, counted = times.size() - first,
                    rows = std::min(most_rows, counted);
  const bool says_tokens = tokens.size() == times.size();
  std::string out = fmt::format("row,seconds{}\n", says_tokens ? ",tokens_per_step" : "");
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = first + counted * row / rows, end = first + counted * (row + 1) / rows;
    const auto at = [&](std::size_t i) { return times.begin() + static_cast<std::ptrdiff_t>(i); };
    out += fmt::format("step times {} to {},{:.17g}", begin + 1, end, median({at(begin), at(end)}));
    if (says_tokens) out += fmt::format(",{:.0f}", median(tokens));
    out += '\n';
  }
  return out;
}

}  // namespace rehearse::study
