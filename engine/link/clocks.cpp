#include "engine/link/clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/numbers/vectorise.h"

namespace rehearse::link {
StepClocks::StepClocks(const OrderedProgram& linked, int lag) : linked_(linked) {
  number_lanes();
  for (const program::Role& role : linked.program.roles)
    for (const program::Op& op : role.ops) {
      most_shift_ = std::max<int>(most_shift_, op.shift);
      for (const program::After& a : op.after) lag = std::max<int>(lag, a.lag);
    }
  // Enough steps for every path of that lag. A shift can lead a path to a later step and back.
  unrolled_steps_ = std::max(lag, 1) + 1 + 2 * most_shift_;
  check_size();
  sort();
}

/// Work is steps x events x entries of a clock. Events and entries are as many as the program's
/// text is long, but `unrolled_steps_` follows from a number in it (a lag), so large products are
/// refused.
void StepClocks::check_size() const {
  constexpr int usual_steps = 16;
  constexpr std::size_t most = std::size_t{1} << 26;
  const std::size_t one = linked_.events.size() * first_.back();
  if (unrolled_steps_ > usual_steps && one > most / static_cast<std::size_t>(unrolled_steps_))
    throw ProgramError(
        fmt::format("its waits, ages and versions reach over {} steps of {} events on {} lanes "
                    "(each op of a lane by "
                    "arrival counts as one): more than the linker follows",
                    unrolled_steps_, linked_.events.size(), first_.back()));
}

void StepClocks::number_lanes() {
  for (Id r = 0; r < linked_.program.roles.size(); ++r) {
    const program::Role& role = linked_.program.roles[r];
    auto& places = places_.emplace_back(role.ops.size());
    std::uint32_t width = 0;
    for (Id l = 0; l < role.lanes.size(); ++l) {
      const bool in_order = role.lanes[l].order == program::Order::in_order;
      const std::vector<Id>& lane = linked_.roles[r].lane_ops[l];
      const auto length = static_cast<std::uint32_t>(lane.size());
      for (std::uint32_t at = 0; at < length; ++at) {
        const Id o = lane[at];
        const int shift = role.ops[o].shift;
        if (!in_order) {
          places[o] = {
              .entry = width++, .first = static_cast<std::uint32_t>(shift) + 1, .previous = o};
          continue;
        }
        const Id previous = lane[at == 0 ? length - 1 : at - 1];
        places[o] = {.entry = width,
                     .first = static_cast<std::uint32_t>(shift) * length + at + 1,
                     .length = length,
                     .at = at,
                     .previous = previous,
                     .lag = role.ops[previous].shift - shift + (at == 0 ? 1 : 0)};
      }
      if (in_order) ++width;
    }
    first_.push_back(first_.back() + width);
  }
  for (const auto members : linked_.events) {
    std::size_t entries = 0;
    for (const RoleOp& m : members) entries += width(m.role);
    kept_.push_back(kept_.back() + entries);
  }
}

const std::uint32_t* StepClocks::clock(Id role, int step, Id event) const {
  std::size_t at = kept(step, event);
  for (const RoleOp& m : linked_.events[event]) {
    if (m.role == role) break;
    at += width(m.role);
  }
  return clocks_.data() + at;
}

std::pair<int, Id> StepClocks::first_steps_predecessor(Id r, Id o, int step) const {
  const program::Role& role = linked_.program.roles[r];
  const program::Op& op = role.ops[o];
  if (role.lanes[op.lane].order == program::Order::arrival) return {0, none};
  const auto& lane = linked_.roles[r].lane_ops[op.lane];
  std::size_t at = places_[r][o].at;
  int iteration = step + op.shift;
  while (true) {
    if (at == 0) {
      if (iteration == 0) return {0, none};
      --iteration, at = lane.size();
    }
    const Id before = lane[--at];
    const int served = iteration - role.ops[before].shift;
    if (served >= 0 && served < unrolled_steps_) return {served, before};
    if (served < 0 && iteration == 0 && at == 0) return {0, none};
  }
}

void StepClocks::sort() {
  const std::size_t events = linked_.events.size(),
                    nodes = events * static_cast<std::size_t>(unrolled_steps_);
  std::vector<std::uint32_t> missing(nodes, 0);
  std::vector<std::size_t> start(nodes + 1, 0);
  auto edges = [&](auto visit) {
    for (int t = 0; t < unrolled_steps_; ++t)
      for (Id e = 0; e < events; ++e)
        for (const RoleOp& m : linked_.events[e])
          waits(m.role, m.op, t,
                [&](Id r, Id o, int at) { visit(node(at, linked_.event_of[r][o]), node(t, e)); });
  };
  edges([&](std::size_t from, std::size_t to) { ++start[from + 1], ++missing[to]; });
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<std::uint32_t> then(start.back());
  {
    auto fill = start;
    edges([&](std::size_t from, std::size_t to) {
      then[fill[from]++] = static_cast<std::uint32_t>(to);
    });
  }
  clocks_.resize(static_cast<std::size_t>(unrolled_steps_) * kept_.back());
  // Clocks of all roles, of events that wait for another predecessor.
  std::vector<std::vector<std::uint32_t>> pool;
  std::vector<std::uint32_t> unused, slot(nodes, none);
  const auto begin_of = [&](std::size_t n, const std::vector<std::uint32_t>& end) {
    if (slot[n] != none) return raise_to(pool[slot[n]].data(), end.data(), end.size());
    if (unused.empty()) {
      unused.push_back(static_cast<std::uint32_t>(pool.size()));
      pool.emplace_back();
    }
    slot[n] = unused.back();
    unused.pop_back();
    pool[slot[n]] = end;
  };
  std::vector<std::size_t> queue;
  queue.reserve(nodes);
  for (std::size_t n = 0; n < nodes; ++n)
    if (!missing[n]) queue.push_back(n);
  std::vector<std::uint32_t> end;
  for (std::size_t k = 0; k < queue.size(); ++k) {
    const std::size_t n = queue[k];
    const int step = static_cast<int>(n / events);
    const Id event = static_cast<Id>(n % events);
    sorted_.emplace_back(step, event);
    if (slot[n] == none) {
      end.assign(first_.back(), 0);
    } else {  // complete: all predecessors came before
      end.swap(pool[slot[n]]);
      unused.push_back(slot[n]);
    }
    auto* keep = clocks_.data() + kept(step, event);
    for (const RoleOp& m : linked_.events[event])
      keep = std::copy_n(end.begin() + first_[m.role], width(m.role), keep);
    for (const RoleOp& m : linked_.events[event]) {
      std::uint32_t& own = end[first_[m.role] + entry(m.role, m.op)];
      own = std::max(own, number(m.role, m.op, step));
    }
    for (std::size_t s = start[n]; s < start[n + 1]; ++s) {
      begin_of(then[s], end);
      if (--missing[then[s]] == 0) queue.push_back(then[s]);
    }
  }
  if (queue.size() < nodes) report_deadlock(missing);
}

void StepClocks::report_deadlock(const std::vector<std::uint32_t>& missing) const {
  // Follow unmet waits from any stuck event. They must close a cycle, which the message prints.
  const std::size_t events = linked_.events.size();
  std::size_t at = 0;
  while (!missing[at]) ++at;
  std::vector<std::size_t> path;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    const int step = static_cast<int>(at / events);
    std::size_t next = at;
    for (const RoleOp& m : linked_.events[at % events])
      waits(m.role, m.op, step, [&](Id r, Id o, int s) {
        if (const std::size_t n = node(s, linked_.event_of[r][o]); missing[n]) next = n;
      });
    at = next;
  }
  std::string text = "deadlock: each of these waits for the next, and the last for the first";
  const auto from = std::find(path.begin(), path.end(), at);
  int shown = 0;
  for (auto n = from; n != path.end() && shown < 12; ++n, ++shown)
    for (const RoleOp& m : linked_.events[*n % events]) {
      const program::Role& role = linked_.program.roles[m.role];
      text += fmt::format("\n{} step {} {}: {}", n == from ? '>' : ' ', *n / events, role.name,
                          to_text(linked_.program, role, m.op));
    }
  throw ProgramError(text);
}

void StepClocks::join_end(Id r, Id o, int step, std::vector<std::uint32_t>& into) const {
  const Id event = linked_.event_of[r][o];
  raise_to(into.data(), clock(r, step, event), into.size());
  for (const RoleOp& e : linked_.events[event])
    if (e.role == r) into[entry(r, e.op)] = std::max(into[entry(r, e.op)], number(r, e.op, step));
}

const std::uint32_t* StepClocks::clock_at_start(Id r, Id o, int step) {
  const Id own = linked_.event_of[r][o];
  if (linked_.events[own].size() == 1) return clock(r, step, own);
  local_.assign(width(r), 0);
  waits(r, o, step, [&](Id pr, Id po, int at) { join_end(pr, po, at, local_); });
  return local_.data();
}

std::vector<std::size_t> StepClocks::implied_waits(Id r, Id o, int step) {
  const auto& after = linked_.program.roles[r].ops[o].after;
  if (after.empty()) return {};
  // For every clock entry: the largest number that any wait gives, the wait that gives it, and the
  // largest that the other waits give. So one pass over the waits is enough.
  struct Largest {
    std::uint32_t first = 0, second = 0;
    std::size_t from = 0;
  };
  std::vector<Largest> known(width(r));
  const auto add = [&](std::size_t from, Id op, int at) {
    local_.assign(width(r), 0);
    join_end(r, op, at, local_);
    for (std::size_t d = 0; d < known.size(); ++d) {
      Largest& l = known[d];
      if (local_[d] > l.first)
        l = {local_[d], l.first, from};
      else
        l.second = std::max(l.second, local_[d]);
    }
  };
  for (std::size_t i = 0; i < after.size(); ++i)
    if (step >= after[i].lag) add(i, after[i].op, step - after[i].lag);
  if (const auto [at, last] = lane_predecessor(r, o, step); last != none)
    add(after.size(), last, at);
  std::vector<std::size_t> implied;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i].throttle || step < after[i].lag) continue;
    const Largest& l = known[entry(r, after[i].op)];
    if ((l.from == i ? l.second : l.first) >= number(r, after[i].op, step - after[i].lag))
      implied.push_back(i);
  }
  return implied;
}

}  // namespace rehearse::link
