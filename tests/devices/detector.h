// Finds two ops that use the same elements while nothing orders them: each op has a vector clock,
// made from the orders of streams and the events that they wait for, so that what is missing shows
// whether or not the ops collided.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

using Clock = std::vector<std::uint64_t>;  // by stream: how many of its ops come before

/// An op of a stream, and what comes before it.
struct Running {
  Body body = {};
  std::size_t stream = 0;
  std::uint64_t number = 0;  // within its stream, from 1
  Clock before = {};
  bool host = false;  // it is the host's own part of an op
};
using RunningOp = std::shared_ptr<const Running>;

inline bool ordered(const Running& first, const Running& then) {
  return first.stream == then.stream ||
         (first.stream < then.before.size() && first.number <= then.before[first.stream]);
}

inline void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

/// Who uses which elements, and whether the orders of streams and events keep them apart.
class Detector {
 public:
  void look(const Touch& touch, const RunningOp& now) {
    auto& uses = uses_[{touch.memory, touch.storage, touch.instance}];
    for (const Use& use : uses) {
      if (!(use.touch.writes || touch.writes) || use.touch.end <= touch.begin ||
          touch.end <= use.touch.begin || ordered(*use.by, *now) || ordered(*now, *use.by))
        continue;
      throw ProgramError(fmt::format(
          "op {} of step {} (lane {}) {} elements [{}, {}) of storage {} while op {} of step {} "
          "(lane {}) {} [{}, {}), and nothing orders them",
          now->body.op, now->body.step, now->body.lane, touch.writes ? "writes" : "reads",
          touch.begin, touch.end, touch.storage, use.by->body.op, use.by->body.step,
          use.by->body.lane, use.touch.writes ? "writes" : "reads", use.touch.begin,
          use.touch.end));
    }
    // Only the last use by an op in this way matters: all earlier ones come before it.
    for (Use& use : uses)
      if (use.by->stream == now->stream && use.by->body.op == now->body.op &&
          use.touch.writes == touch.writes && use.touch.begin == touch.begin &&
          use.touch.end == touch.end) {
        use.by = now;
        return;
      }
    uses.push_back({touch, now});
  }
  void forget() { uses_.clear(); }

 private:
  struct Use {
    Touch touch;
    RunningOp by;
  };
  std::map<std::tuple<const void*, Id, std::size_t>, std::vector<Use>> uses_ = {};
};

}  // namespace rehearse::runtime
