#include "engine/costs/device/beside.h"

#include <algorithm>
#include <map>

namespace rehearse::costs {

std::vector<Beside> passes_beside(const program::Role& role) {
  std::map<Id, std::vector<Id>> of_pass;
  Id compute = none, last = none;  // the lane of passes; the last pass
  // By op and by lane: the last op of the compute lane for whose end it waits, plus one.
  std::vector<Id> awaited(role.ops.size(), 0), of_lane(role.lanes.size(), 0);
  std::vector<Id> waiting = {};  // collectives that may run beside the next pass
  for (Id o = 0; o < role.ops.size(); ++o) {
    const program::Op& op = role.ops[o];
    const bool pass = std::holds_alternative<program::Compute>(op.work);
    if (pass && compute == none) compute = op.lane;
    Id& seen = of_lane[op.lane];
    for (const program::After& after : op.after) {
      if (after.lag > 0 || after.op >= o) continue;
      const Id lane = role.ops[after.op].lane;
      seen = std::max(seen, lane == compute ? after.op + 1 : awaited[after.op]);
      if (op.lane == compute)
        std::erase_if(waiting, [&](Id c) { return role.ops[c].lane == lane && c <= after.op; });
    }
    awaited[o] = seen;
    const bool collective = std::holds_alternative<program::Collective>(op.work);
    if (op.lane != compute && collective && op.when.until == 0) {
      if (last != none && seen <= last)
        of_pass[last].push_back(o);
      else
        waiting.push_back(o);
    } else if (pass) {
      for (const Id c : waiting) of_pass[o].push_back(c);
      waiting.clear();
      last = o;
    }
  }
  std::vector<Beside> out;
  for (auto& [pass, collectives] : of_pass) out.push_back({pass, std::move(collectives)});
  return out;
}

}  // namespace rehearse::costs
