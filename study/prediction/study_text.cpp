// Lines about a study that several commands print.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "study/prediction/study.h"

namespace rehearse::study {

std::string step_time_text(const Study& study) {
  const execution::Spread& t = study.summary.step_time;
  int decimals = 3;  // enough for four significant digits of the mean ...
  for (double v = t.mean; v < 0.9995 && decimals < 9; v *= 10) ++decimals;
  // ... and for one significant digit of the interval, unless the interval is 0.
  while (t.ci95 > 0 && t.ci95 * std::pow(10, decimals) < 0.5 && decimals < 9) ++decimals;
  const std::string seeds =
      study.seeds.size() == 1 ? "1 seed" : fmt::format("{} seeds", study.seeds.size());
  std::string out = fmt::format("{:.{}f} s", t.mean, decimals);
  out += t.values.size() > 1 ? fmt::format(" +- {:.{}f} (95%, {})", t.ci95, decimals, seeds)
                             : fmt::format(" ({})", seeds);
  return out;
}

std::string interval_text(const Study& s) {
  if (!s.interval) return "";
  return fmt::format("{} to {} ({:.0f}%, with calibration error)",
                     to_text(Seconds(s.interval->first)), to_text(Seconds(s.interval->second)),
                     100 * s.interval_level);
}

std::string range_text(const std::vector<int>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *least == *most ? fmt::format("{}", *most) : fmt::format("{} to {}", *least, *most);
}

std::string steps_text(const StepsRun& steps) {
  std::string out = range_text(steps.by_seed);
  if (steps.precision > 0)
    return out + fmt::format(" of {} run by each seed, for a mean within {:.4g}%", steps.most,
                             100 * steps.precision);
  out += " run";
  if (steps.period == 1) out += ", all later ones are equal";
  if (steps.period > 1) out += fmt::format(", all later ones repeat every {}", steps.period);
  return out;
}

std::string energy_text(const Study& study) {
  const double joules = study.summary.joules_per_step;
  if (joules <= 0) return "";
  return fmt::format("{} a step, {} a rank, {} a sample", to_text(Joules(joules)),
                     to_text(Joules(joules / study.world_size)),
                     to_text(Joules(joules / study.subject.global_batch)));
}

std::string money_text(double amount, const std::string& currency) {
  return amount >= 1 ? fmt::format("{:.2f} {}", amount, currency)
                     : fmt::format("{:.3g} {}", amount, currency);
}

std::string cost_text(const Study& study) {
  const cluster::Rent& rent = study.rent;
  const std::optional<Cost> cost = cost_of(study);
  if (!cost && rent.prices.empty()) return "";
  if (!cost)
    return fmt::format("not known: {} {} no price (cluster.prices)", fmt::join(rent.unpriced, ", "),
                       rent.unpriced.size() == 1 ? "has" : "have");
  return fmt::format(
      "{} an hour, {} a step, {} a billion tokens; {}", money_text(cost->per_hour, cost->currency),
      money_text(cost->per_step, cost->currency),
      money_text(cost->per_billion_tokens, cost->currency), fmt::join(rent.prices, ", "));
}

std::string mesh_text(const Study& study) {
  std::vector<std::string> axes;
  for (const program::Axis& axis : study.mesh)
    if (axis.size > 1) axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  if (axes.empty()) axes.emplace_back("1 rank");
  std::string out = fmt::format("{}", fmt::join(axes, " x "));
  if (study.servers > 0)
    out += fmt::format(" + {} server{}", study.servers, study.servers == 1 ? "" : "s");
  return out;
}

}  // namespace rehearse::study
