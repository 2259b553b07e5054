#include "engine/goodput/summary.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/goodput/theory.h"

namespace rehearse::goodput {

Summary summarise(std::span<const Outcome> outcomes) {
  Summary out;
  std::vector<double> ratios;
  const auto n = static_cast<double>(outcomes.size());
  for (const Outcome& o : outcomes) {
    ratios.push_back(o.goodput());
    out.productive += seconds(o.productive).value / n;
    for (std::size_t l = 0; l < losses; ++l) out.lost[l] += seconds(o.lost[l]).value / n;
    out.interruptions += o.interruptions / n;
    out.steps += static_cast<double>(o.steps) / n;
    out.lost_steps += static_cast<double>(o.lost_steps) / n;
    out.checkpoints += static_cast<double>(o.checkpoints) / n;
    out.reads += o.reads / n;
    out.destroyed += o.destroyed / n;
    out.undetected += o.undetected / n;
    out.waiting_at_end += o.ends_waiting ? 1 : 0;
    out.least_replicas =
        out.least_replicas == 0 ? o.least_replicas : std::min(out.least_replicas, o.least_replicas);
  }
  out.goodput = execution::spread(std::move(ratios));
  return out;
}

Summary walk_all(const Setting& setting, const Policy& policy, const Failures& failures) {
  std::vector<Outcome> outcomes;
  outcomes.reserve(failures.size());
  for (const std::vector<Incident>& one : failures) outcomes.push_back(walk(setting, policy, one));
  return summarise(outcomes);
}

Seconds between_incidents(const Failures& failures, const Setting& setting) {
  double count = 0;
  for (const std::vector<Incident>& one : failures)
    count += static_cast<double>(std::count_if(one.begin(), one.end(), [&](const Incident& i) {
      return i.at < setting.duration && !passes_unnoticed(setting, i) &&
             (interrupts(i.strike) || i.strike == Strike::corrupts || i.strike == Strike::stalls);
    }));
  if (count == 0) return Seconds(0);
  return static_cast<double>(failures.size()) / count * seconds(setting.duration);
}

std::vector<IntervalScore> score_intervals(const Setting& setting, const Policy& policy,
                                           const Failures& failures) {
  const Seconds between = between_incidents(failures, setting);
  if (between.value == 0) return {};
  const double step = seconds(setting.step).value;
  const double start =
      std::max(step, young(seconds(setting.checkpoint.stall), between).value) / step;
  const double most = std::max(1.0, seconds(setting.duration).value / step);
  std::map<std::int64_t, double> scores;
  Setting one = setting;
  const auto score = [&](double steps) {
    one.save_every = std::max<std::int64_t>(1, std::llround(std::min(steps, most)));
    const auto [it, fresh] = scores.try_emplace(one.save_every, 0);
    if (fresh) it->second = walk_all(one, policy, failures).goodput.mean;
  };
  for (int k = -6; k <= 6; ++k) score(start * std::pow(2, k / 2.0));
  const auto highest = [&] {  // of equal ones the longest
    auto out = scores.begin();
    for (auto it = scores.begin(); it != scores.end(); ++it)
      if (it->second >= out->second) out = it;
    return out->first;
  };
  // Where checkpoints are hardly ever read, longer intervals are better without end.
  while (highest() == scores.rbegin()->first && 2.0 * static_cast<double>(highest()) < most)
    score(2.0 * static_cast<double>(highest()));
  for (const double width : {0.25, 0.125}) {
    const auto center = static_cast<double>(highest());
    for (const double side : {-width, width}) score(center * std::pow(2, side));
  }
  std::vector<IntervalScore> out;
  for (const auto& [every, goodput] : scores) out.push_back({every, goodput});
  return out;
}

const IntervalScore& best(const std::vector<IntervalScore>& scores) {
  const IntervalScore* out = &scores.front();
  for (const IntervalScore& s : scores)
    if (s.goodput >= out->goodput) out = &s;
  return *out;
}

}  // namespace rehearse::goodput
