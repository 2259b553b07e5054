#include "engine/link/readiness.h"

#include <fmt/format.h>

#include <algorithm>

namespace rehearse::link {
namespace {

/// Heap order: earliest `since` first; ties go to the earlier step, then to the earlier op.
bool later(const Ready& a, const Ready& b) {
  if (a.since != b.since) return a.since > b.since;
  if (a.step != b.step) return a.step > b.step;
  return a.op > b.op;
}

}  // namespace

Readiness::Readiness(const OrderedProgram& linked, int steps) : linked_(linked) {
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    RoleState state;
    state.first_lane = static_cast<Id>(lanes_.size());
    state.lanes = static_cast<Id>(role.lanes.size());
    state.ops = static_cast<Id>(role.ops.size());
    state.limit = role.free_running ? std::numeric_limits<int>::max() : steps;
    state.waits = &linked.roles[r].waits;
    state.dependents = state.waits->transposed();
    for (const program::Op& op : role.ops)
      state.max_shift = std::max<int>(state.max_shift, op.shift);
    const std::size_t rows = role.ranks.size() * role.ops.size();
    state.done.assign(rows, 0);
    state.instances.resize(rows);
    for (std::size_t row = 0; row < rows; ++row)
      state.instances[row].missing = need(state, static_cast<Id>(row % role.ops.size()), 0);
    if (!role.free_running) instances_to_run_ += static_cast<std::int64_t>(rows) * steps;
    for (Id place = 0; place < role.ranks.size(); ++place)
      for (Id l = 0; l < role.lanes.size(); ++l)
        lanes_.push_back({.role = r,
                          .place = place,
                          .lane = l,
                          .arrival = role.lanes[l].order == program::Order::arrival});
    roles_.push_back(std::move(state));
  }
  std::vector<Id> ignored;
  for (RankLane& lane : lanes_) {
    if (!lane.arrival || steps == 0) continue;
    for (const Id op : linked.roles[lane.role].lane_ops[lane.lane])
      if (need(roles_[lane.role], op, 0) == 0)
        make_ready(roles_[lane.role], lane.place, op, 0, 0, ignored);
  }
}

std::uint32_t Readiness::need(const RoleState& role, Id op, int step) const {
  const auto waits = role.waits->of(op);
  return static_cast<std::uint32_t>(std::count_if(
      waits.begin(), waits.end(), [step](const Wait& wait) { return wait.lag <= step; }));
}

Readiness::Instance& Readiness::instance(RoleState& role, Id place, Id op, int step) {
  const std::size_t row = std::size_t{place} * role.ops + op;
  while (static_cast<std::size_t>(step - role.done[row]) >= role.window) widen(role);
  return role.instances[row * role.window + (static_cast<std::size_t>(step) & (role.window - 1))];
}

void Readiness::widen(RoleState& role) {
  const std::size_t old = role.window;
  std::vector<Instance> wide(role.instances.size() * 2);
  for (std::size_t row = 0; row < role.done.size(); ++row)
    for (std::size_t i = 0; i < 2 * old; ++i) {
      const int step = role.done[row] + static_cast<int>(i);
      const auto s = static_cast<std::size_t>(step);
      Instance& to = wide[row * 2 * old + (s & (2 * old - 1))];
      if (i < old)
        to = role.instances[row * old + (s & (old - 1))];
      else
        to.missing = need(role, static_cast<Id>(row % role.ops), step);
    }
  role.instances = std::move(wide);
  role.window = 2 * old;
}

void Readiness::make_ready(RoleState& role, Id place, Id op, int step, double since,
                           std::vector<Id>& lanes) {
  const Id l = linked_.program.roles[static_cast<std::size_t>(&role - roles_.data())].ops[op].lane;
  const Id id = role.first_lane + place * role.lanes + l;
  RankLane& lane = lanes_[id];
  if (lane.arrival) {
    lane.ready.push_back({.op = op, .step = step, .since = since});
    std::push_heap(lane.ready.begin(), lane.ready.end(), later);
  }
  lanes.push_back(id);
}

bool Readiness::next(RankLane& lane, Ready& out) {
  RoleState& role = roles_[lane.role];
  const bool free_running = linked_.program.roles[lane.role].free_running;
  if (lane.arrival) {
    if (lane.ready.empty() || (stopped_ && free_running)) return false;
    std::pop_heap(lane.ready.begin(), lane.ready.end(), later);
    out = lane.ready.back();
    lane.ready.pop_back();
    out.since = std::max(out.since, lane.free_at);
    return true;
  }
  const std::vector<Id>& ops = linked_.roles[lane.role].lane_ops[lane.lane];
  if (ops.empty()) return false;
  const std::vector<program::Op>& all = linked_.program.roles[lane.role].ops;
  for (;; ++lane.next) {
    if (lane.next == ops.size()) {
      lane.next = 0;
      ++lane.iteration;
    }
    if (lane.next == 0 &&
        (lane.iteration - role.max_shift >= role.limit || (stopped_ && free_running)))
      return false;
    const int step = lane.iteration - all[ops[lane.next]].shift;
    if (step < 0 || step >= role.limit) continue;
    const Instance& head = instance(role, lane.place, ops[lane.next], step);
    if (head.missing > 0) return false;
    out = {.op = ops[lane.next], .step = step, .since = std::max(head.since, lane.free_at)};
    ++lane.next;
    return true;
  }
}

void Readiness::finish(const RankLane& lane, Id op, int step, double end, std::vector<Id>& lanes) {
  RoleState& role = roles_[lane.role];
  const std::size_t row = std::size_t{lane.place} * role.ops + op;
  // The step that enters the window reuses the slot of the finished instance.
  Instance& mine =
      role.instances[row * role.window + (static_cast<std::size_t>(step) & (role.window - 1))];
  mine = {.missing = need(role, op, step + static_cast<int>(role.window))};
  ++role.done[row];
  if (!linked_.program.roles[lane.role].free_running) ++finished_;
  for (const Wait& dependent : role.dependents.of(op)) {
    if (dependent.lag >= role.limit - step) continue;
    Instance& waiting = instance(role, lane.place, dependent.op, step + dependent.lag);
    waiting.since = std::max(waiting.since, end);
    if (--waiting.missing == 0)
      make_ready(role, lane.place, dependent.op, step + dependent.lag, waiting.since, lanes);
  }
}

std::string Readiness::stuck(int limit) const {
  std::string text;
  for (const RankLane& lane : lanes_) {
    if (limit == 0) break;
    const program::Role& role = linked_.program.roles[lane.role];
    const RoleState& state = roles_[lane.role];
    if (role.free_running) continue;
    Id op = lane.current.op;
    int step = lane.current.step;
    if (!lane.busy) {
      const std::vector<Id>& ops = linked_.roles[lane.role].lane_ops[lane.lane];
      const auto waits = std::find_if(ops.begin(), ops.end(), [&](Id o) {
        return state.done[std::size_t{lane.place} * state.ops + o] < state.limit;
      });
      if (waits == ops.end()) continue;
      op = lane.arrival || lane.next >= ops.size() ? *waits : ops[lane.next];
      step = state.done[std::size_t{lane.place} * state.ops + op];
    }
    text += fmt::format("\n  rank {} ({}), step {}, {}: {}", role.ranks[lane.place], role.name,
                        step, lane.busy ? "began and did not end" : "did not begin",
                        to_text(linked_.program, role, op));
    --limit;
  }
  return text;
}

}  // namespace rehearse::link
