// Plays a schedule on arrays whose elements remember who contributed to them.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "engine/collectives/schedule.h"

namespace rehearse::collectives {

/// [member][element]: its contributors after all rounds. At first, a member has its own tensor or,
/// with `gather`, its own part of it.
inline std::vector<std::vector<std::multiset<int>>> play(const Schedule& plan,
                                                         std::int64_t elements, bool gather) {
  const auto n = static_cast<std::size_t>(plan.members());
  std::vector<std::vector<std::multiset<int>>> state(
      n, std::vector<std::multiset<int>>(static_cast<std::size_t>(elements)));
  for (std::size_t m = 0; m < n; ++m)
    for (std::size_t e = 0; e < state[m].size(); ++e)
      if (!gather || (e >= m * state[m].size() / n && e < (m + 1) * state[m].size() / n))
        state[m][e] = {static_cast<int>(m)};
  for (int r = 0; r < plan.rounds(); ++r) {
    std::vector<Transfer> all;
    plan.round(r, -1, all);
    const auto before = state;
    for (const Transfer& t : all)
      for (auto e = static_cast<std::size_t>(t.begin); e < static_cast<std::size_t>(t.end); ++e) {
        const auto& from = before[static_cast<std::size_t>(t.from)][e];
        auto& to = state[static_cast<std::size_t>(t.to)][e];
        EXPECT_FALSE(from.empty()) << "round " << r << " sends what is not there";
        if (t.add)
          to.insert(from.begin(), from.end());
        else
          to = from;
      }
  }
  return state;
}

}  // namespace rehearse::collectives
