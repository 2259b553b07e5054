// First the tables and channels are checked (link_checks.h). Then the events of a few steps are
// sorted and get vector clocks (clocks.h). The clocks show whether hazards are covered, which waits
// are redundant and how much memory is needed (memory_plan.h).
#include "engine/link/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <ranges>

#include "engine/base/errors.h"
#include "engine/link/clocks.h"
#include "engine/link/hazards.h"
#include "engine/link/link_checks.h"
#include "engine/link/memory_plan.h"
#include "engine/link/rendezvous.h"
#include "engine/link/workspace.h"
#include "engine/program/program_tables.h"

namespace rehearse::link {
namespace {

class Linker {
 public:
  explicit Linker(program::Program program, Workspace workspace = {})
      : workspace_(std::move(workspace)) {
    out_.program = std::move(program);
  }

  /// Returns the program without redundant waits. Assumes that all hazards are covered.
  program::Program prune() {
    place_ranks();
    resolve();
    match_channels(out_);
    clocks_.emplace(out_, 0);
    find_redundant();
    for (const RedundantWait& r : std::ranges::reverse_view(out_.redundant)) {
      auto& after = out_.program.roles[r.role].ops[r.op].after;
      after.erase(after.begin() + static_cast<std::ptrdiff_t>(r.index));
    }
    return std::move(out_.program);
  }

  /// Matches channels and sorts ops. Assumes that all hazards are covered.
  OrderedProgram order_only() {
    place_ranks();
    resolve();
    match_channels(out_);
    order_lanes();
    return std::move(out_);
  }

  LinkedProgram run() {
    const program::Program& p = out_.program;
    check_tables(p);
    place_ranks();
    resolve();
    match_channels(out_);
    int lag = 0;
    for (const program::Role& role : p.roles)
      lag = std::max(lag, hazards_.emplace_back(hazards_of(p, role)).max_lag);
    clocks_.emplace(out_, lag);
    check_hazards();
    find_redundant();
    for (Id r = 0; r < p.roles.size(); ++r) {
      find_deaths(p.roles[r], hazards_[r], out_.roles[r]);
      out_.memory.push_back(plan_memory(p, r, hazards_[r], *clocks_, workspace_));
    }
    order();
    return std::move(out_);
  }

 private:
  void place_ranks() {
    const program::Program& p = out_.program;
    out_.role_of.assign(static_cast<std::size_t>(p.world_size), none);
    out_.place_of = out_.role_of;
    for (Id r = 0; r < p.roles.size(); ++r)
      for (Id i = 0; i < p.roles[r].ranks.size(); ++i) {
        const Id rank = p.roles[r].ranks[i];
        if (rank >= out_.role_of.size() || out_.role_of[rank] != none)
          throw ProgramError(
              fmt::format("rank {} plays no role or two ('{}')", rank, p.roles[r].name));
        out_.role_of[rank] = r;
        out_.place_of[rank] = i;
      }
    for (std::size_t rank = 0; rank < out_.role_of.size(); ++rank)
      if (out_.role_of[rank] == none)
        throw ProgramError(fmt::format("rank {} plays no role", rank));
  }

  void resolve() {
    out_.roles.resize(out_.program.roles.size());
    for (Id r = 0; r < out_.program.roles.size(); ++r) resolve(r);
  }

  /// Bytes read plus bytes written. A strided read moves one cache line per entry.
  static std::int64_t bytes_touched(const program::Program& p, const program::Role& role,
                                    const program::Op& op, const program::Ref& ref) {
    constexpr std::int64_t line = 64;
    const std::int64_t bytes = bytes_of(p, role, ref) * (ref.mode == program::Mode::add ? 2 : 1);
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    if (!kernel || kernel->kind != program::KernelKind::observe ||
        ref.slot != program::Slot::source)
      return bytes;
    return std::min(bytes,
                    program::observed_entries(elements_of(p, role, ref), kernel->stride) * line);
  }

  void resolve(Id r) {
    const program::Program& p = out_.program;
    const program::Role& role = p.roles[r];
    LinkedRole& linked = out_.roles[r];
    linked.lane_ops.resize(role.lanes.size());
    linked.ops.resize(role.ops.size());
    for (Id o = 0; o < role.ops.size(); ++o) {
      const program::Op& op = role.ops[o];
      linked.lane_ops[op.lane].push_back(o);
      LinkedOp& l = linked.ops[o];
      if (channel_of(op.work) == none) {
        for (const program::Ref& ref : op.refs)
          if (__builtin_add_overflow(l.bytes, bytes_touched(p, role, op, ref), &l.bytes))
            throw ProgramError(fmt::format("role {}: op %{} touches more bytes than can be counted",
                                           role.name, o));
        continue;
      }
      const program::Ref* payload = find(op, program::Slot::target);
      if (const program::Ref* source = find(op, program::Slot::source);
          source && (!payload || elements_of(p, role, *source) > elements_of(p, role, *payload)))
        payload = source;
      if (payload) {
        l.elements = elements_of(p, role, *payload);
        l.bytes = bytes_of(p, role, *payload);
        l.wire = role.storages[role.views[payload->view].storage].dtype;
      }
      if (std::holds_alternative<program::Put>(op.work) ||
          std::holds_alternative<program::Take>(op.work))
        out_.mailboxes = true;
    }
  }

  void check_hazards() {
    static constexpr const char* kinds[]{"read after write", "write after read",
                                         "write after write"};
    const int step = clocks_->steady();
    for (Id r = 0; r < hazards_.size(); ++r) {
      const std::uint32_t* begin = nullptr;
      Id of = none;
      for (const Hazard& h : hazards_[r].list) {  // grouped by op
        if (step - h.lag < 0) continue;
        if (h.op != of) begin = clocks_->clock_at_start(r, of = h.op, step);
        if (clocks_->ended(begin, r, h.on, step - h.lag)) continue;
        const program::Role& role = out_.program.roles[r];
        throw ProgramError(
            fmt::format("data race ({}) on '{}' in role {}: nothing makes the second op wait for "
                        "the first{}\n  {}\n> {}",
                        kinds[static_cast<int>(h.kind)], role.views[h.view].name, role.name,
                        h.lag ? fmt::format(" of {} step(s) before", h.lag) : "",
                        to_text(out_.program, role, h.on), to_text(out_.program, role, h.op)));
      }
    }
  }

  void find_redundant() {
    for (Id r = 0; r < out_.program.roles.size(); ++r)
      for (Id o = 0; o < out_.program.roles[r].ops.size(); ++o)
        for (const std::size_t i : clocks_->implied_waits(r, o, clocks_->steady()))
          out_.redundant.push_back({r, o, i});
  }

  /// Event `to` waits for the instance of event `from` that serves the step `lag` steps earlier
  /// (negative: a later step).
  struct EventWait {
    Id from = none, to = none;
    int lag = 0;
  };

  void order() {
    // In this middle step every event has the same waits as in all later steps.
    const int step = clocks_->steady();
    std::vector<EventWait> waits;
    for (const auto& [at, e] : clocks_->sorted()) {
      if (at != step) continue;
      for (const RoleOp& m : out_.events[e])
        clocks_->waits(m.role, m.op, step, [&, to = e](Id r, Id o, int when) {
          waits.push_back({out_.event_of[r][o], to, step - when});
        });
    }
    order(waits);
  }

  /// The same without clocks.
  void order_lanes() {
    std::vector<EventWait> waits;
    std::size_t count = 0;
    for (const program::Role& role : out_.program.roles)
      for (const program::Op& op : role.ops) count += 1 + op.after.size();
    waits.reserve(count);
    for (Id r = 0; r < out_.program.roles.size(); ++r) {
      const auto& ops = out_.program.roles[r].ops;
      const auto& lanes = out_.program.roles[r].lanes;
      const auto& event_of = out_.event_of[r];
      for (const auto& lane : out_.roles[r].lane_ops)
        for (std::size_t i = 0; i < lane.size(); ++i) {
          const bool arrival = lanes[ops[lane[i]].lane].order == program::Order::arrival;
          const Id last = arrival ? lane[i] : lane[i > 0 ? i - 1 : lane.size() - 1];
          waits.push_back({event_of[last], event_of[lane[i]],
                           ops[last].shift - ops[lane[i]].shift + (i > 0 && !arrival ? 0 : 1)});
        }
      for (Id o = 0; o < ops.size(); ++o)
        for (const program::After& a : ops[o].after)
          waits.push_back({event_of[a.op], event_of[o], a.lag});
    }
    order(waits);
  }

  /// Chooses offsets such that every wait points to an earlier or the same macro-iteration, then
  /// sorts one macro-iteration topologically.
  void order(const std::vector<EventWait>& waits) {
    const std::size_t events = out_.events.size();
    std::vector<int> offset(events, 0);
    std::size_t rounds = 0;
    for (bool changed = true; changed && rounds <= events; ++rounds) {
      changed = false;
      for (const EventWait& w : waits)
        if (offset[w.from] - w.lag > offset[w.to])
          offset[w.to] = offset[w.from] - w.lag, changed = true;
    }
    std::vector<std::uint32_t> missing(events, 0), start(events + 1, 0);
    const auto same = [&](const EventWait& w) { return w.lag + offset[w.to] == offset[w.from]; };
    for (const EventWait& w : waits)
      if (same(w)) ++missing[w.to], ++start[w.from + 1];
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<Id> then(start.back());
    for (auto fill = start; const EventWait& w : waits)
      if (same(w)) then[fill[w.from]++] = w.to;
    std::vector<Id> queue;
    queue.reserve(events);
    for (Id e = 0; e < events; ++e)
      if (!missing[e]) queue.push_back(e);
    for (std::size_t k = 0; k < queue.size(); ++k)
      for (auto t = start[queue[k]]; t < start[queue[k] + 1]; ++t)
        if (--missing[then[t]] == 0) queue.push_back(then[t]);
    if (queue.size() < events) throw ProgramError("deadlock: ops wait for each other in a circle");
    out_.order.reserve(events);
    for (Id e : queue)
      for (const RoleOp& m : out_.events[e]) out_.order.push_back({m.role, m.op, offset[e]});
    out_.max_offset = offset.empty() ? 0 : *std::max_element(offset.begin(), offset.end());
    for (Id r = 0; r < out_.roles.size(); ++r) tabulate_waits(r, offset);
  }

  /// Fills the role's WaitTable. `offset`: by event.
  void tabulate_waits(Id r, const std::vector<int>& offset) {
    const program::Role& role = out_.program.roles[r];
    const std::vector<Id>& event_of = out_.event_of[r];
    WaitTable& waits = out_.roles[r].waits;
    std::size_t count = 0;
    for (const program::Op& op : role.ops) count += op.after.size() + 1;
    waits.reserve(role.ops.size(), count);
    for (Id o = 0; o < role.ops.size(); ++o) {
      for (const program::After& a : role.ops[o].after)
        waits.add({.op = a.op,
                   .lag = a.lag,
                   .back = offset[event_of[o]] + a.lag - offset[event_of[a.op]]});
      if (role.lanes[role.ops[o].lane].order == program::Order::arrival)
        waits.add({.op = o, .lag = 1, .back = 1});
      waits.end_op();
    }
  }

  LinkedProgram out_ = {};
  Workspace workspace_ = {};
  std::vector<Hazards> hazards_ = {};
  std::optional<StepClocks> clocks_ = {};
};

}  // namespace

WaitTable WaitTable::transposed() const {
  WaitTable out;
  out.first_.assign(first_.size(), 0);
  for (const Wait& wait : waits_) ++out.first_[wait.op + 1];
  std::partial_sum(out.first_.begin(), out.first_.end(), out.first_.begin());
  out.waits_.resize(waits_.size());
  auto fill = out.first_;
  for (Id op = 0; op + 1 < first_.size(); ++op)
    for (const Wait& wait : of(op))
      out.waits_[fill[wait.op]++] = {.op = op, .lag = wait.lag, .back = wait.back};
  return out;
}

LinkedProgram link(program::Program program, const Workspace& workspace) {
  return Linker(std::move(program), workspace).run();
}
LinkedProgram link(program::Program program) { return Linker(std::move(program)).run(); }

OrderedProgram order(program::Program program) { return Linker(std::move(program)).order_only(); }

program::Program without_redundant_waits(program::Program program) {
  return Linker(std::move(program)).prune();
}

}  // namespace rehearse::link
