#include "study/prediction/collectives_used.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/base/names.h"

namespace rehearse::study {

std::vector<CollectivesUsed> collectives_used(const program::Program& program,
                                              program::Algorithm stated) {
  std::map<std::tuple<Id, program::Move, program::Algorithm>, int> ops;
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (const auto* work = std::get_if<program::Collective>(&op.work))
        ++ops[{work->channel, work->move, work->algorithm}];
  std::vector<CollectivesUsed> out;
  for (const auto& [key, count] : ops) {
    const auto& [channel, move, algorithm] = key;
    const bool automatic = stated == program::Algorithm::automatic || algorithm != stated;
    out.push_back({program.channels[channel].name, move, algorithm, automatic, count});
  }
  return out;
}

std::string describe(const std::vector<CollectivesUsed>& used) {
  const bool all = std::ranges::all_of(used, &CollectivesUsed::automatic);
  std::vector<std::string> parts;
  for (const CollectivesUsed& u : used) {
    // Channels that differ by number only, as those of servers do, are named once.
    std::string group = u.group;
    while (group.size() > 2 && group.find_last_not_of("0123456789") + 1 < group.size() &&
           group[group.find_last_not_of("0123456789")] == '.')
      group.resize(group.find_last_not_of("0123456789"));
    std::string part = fmt::format("{} {} {}{}", group, name_of(u.move), name_of(u.algorithm),
                                   u.automatic && !all ? " (automatic)" : "");
    if (std::ranges::find(parts, part) == parts.end()) parts.push_back(std::move(part));
  }
  return fmt::format("{}{}", fmt::join(parts, ", "), all && !used.empty() ? " (automatic)" : "");
}

nlohmann::ordered_json to_json(const std::vector<CollectivesUsed>& used) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const CollectivesUsed& u : used)
    out.push_back({{"group", u.group},
                   {"move", name_of(u.move)},
                   {"algorithm", name_of(u.algorithm)},
                   {"automatic", u.automatic},
                   {"ops", u.ops}});
  return out;
}

}  // namespace rehearse::study
