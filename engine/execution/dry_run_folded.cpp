// See fold.h. Max-plus over the linked order as in dry_run.cpp, for few classes and many programs:
// everything that an op needs is laid out flat first, in the order in which it is needed.
#include <algorithm>
#include <cassert>
#include <memory>

#include "engine/base/errors.h"
#include "engine/execution/dry_run.h"
#include "engine/execution/fold.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {
namespace {

class FoldedRun {
 public:
  FoldedRun(const link::OrderedProgram& linked, const costs::Costs& costs, const Fold& fold,
            int steps, TraceSink* sink)
      : linked_(linked), costs_(costs), fold_(fold), steps_(steps), sink_(sink) {
    step_ends_.assign(static_cast<std::size_t>(steps), 0.0);
    place_ops();
    lay_out();
    for (auto& ends : ends_) ends.resize(slots_);
  }

  /// When each step ended.
  std::vector<double> run() {
    for (int i = 0; i < steps_ + linked_.max_offset; ++i) {
      std::rotate(ends_.begin(), ends_.end() - 1, ends_.end());
      for (const Event& event : events_) {
        const int step = i - event.offset;
        if (step < 0 || step >= steps_) continue;
        if (event.meet != nullptr)
          collective(event, step);
        else if (event.end - event.begin == 2)
          pair(members_[event.begin], members_[event.begin + 1], step);
        else
          local(members_[event.begin], step);
      }
    }
    return std::move(step_ends_);
  }

 private:
  using Slot = std::uint32_t;  // holds a time of one class

  struct Member {
    Id role = none, op = none, classes = 0;
    Slot slot = 0, lane = 0;  // its first class's, among ends and among lanes
    std::uint32_t wait = 0, waits_end = 0;
  };
  struct Wait {
    Slot slot = 0;
    int lag = 0;
    std::uint32_t back = 0;  // how many iterations ago the instance has run
  };
  /// [member][class] -> group.
  struct FoldedRendezvous {
    std::size_t groups = 0;
    std::vector<std::vector<Id>> group = {};
  };
  struct Event {
    std::uint32_t begin = 0, end = 0;  // members
    int offset = 0;
    const FoldedRendezvous* meet = nullptr;  // of collectives
  };

  const program::Role& role(Id r) const { return linked_.program.roles[r]; }
  Id classes(Id r) const { return static_cast<Id>(fold_.representative[r].size()); }
  Slot slot(Id r, Id o) const { return first_slot_[r] + o * classes(r); }

  void place_ops() {
    Slot lanes = 0;
    Id widest = 0;
    for (Id r = 0; r < linked_.program.roles.size(); ++r) {
      first_slot_.push_back(slots_);
      first_lane_.push_back(lanes);
      slots_ += static_cast<Slot>(role(r).ops.size()) * classes(r);
      lanes += static_cast<Slot>(role(r).lanes.size()) * classes(r);
      widest = std::max(widest, classes(r));
    }
    lanes_.assign(lanes, 0.0);
    start_.resize(widest), other_.resize(widest);
    group_start_.resize(static_cast<std::size_t>(linked_.program.world_size));
  }

  void lay_out() {
    const auto& order = linked_.order;
    rendezvous_.resize(linked_.program.channels.size() * linked_.program.roles.size());
    members_.reserve(order.size());
    waits_.reserve(order.size());
    events_.reserve(linked_.events.size());
    costs_of_.resize(slots_);
    std::vector<int> offset(linked_.events.size(), 0);
    for (const link::OrderedOp& turn : order)
      offset[linked_.event_of[turn.role][turn.op]] = turn.offset;
    for (std::size_t k = 0; k < order.size();) {
      const auto event = linked_.events[linked_.event_of[order[k].role][order[k].op]];
      Event& out = events_.emplace_back();
      out.begin = static_cast<std::uint32_t>(members_.size()), out.offset = order[k].offset;
      for (const link::RoleOp& m : event) {
        const program::Op& op = role(m.role).ops[m.op];
        const Id n = classes(m.role);
        Member& member = members_.emplace_back();
        member = {.role = m.role,
                  .op = m.op,
                  .classes = n,
                  .slot = slot(m.role, m.op),
                  .lane = first_lane_[m.role] + op.lane * n,
                  .wait = static_cast<std::uint32_t>(waits_.size())};
        for (const program::After& a : op.after) {
          const int back = out.offset + a.lag - offset[linked_.event_of[m.role][a.op]];
          assert(back >= 0);
          waits_.push_back({slot(m.role, a.op), a.lag, static_cast<std::uint32_t>(back)});
          if (waits_.back().back >= ends_.size()) ends_.resize(waits_.back().back + 1);
        }
        member.waits_end = static_cast<std::uint32_t>(waits_.size());
        const auto row = costs_.seconds(m.role, m.op);
        for (Id c = 0; c < n; ++c)
          costs_of_[member.slot + c] = row[row.size() == 1 ? 0 : fold_.representative[m.role][c]];
      }
      out.end = static_cast<std::uint32_t>(members_.size());
      if (std::holds_alternative<program::Collective>(role(event[0].role).ops[event[0].op].work))
        out.meet = rendezvous(event);
      k += event.size();
    }
  }

  /// The maximum over everything that the op waits for.
  void ready(const Member& m, int step, double* start) {
    if (m.classes == 1) {
      double at = lanes_[m.lane];
      for (std::size_t w = m.wait; w < m.waits_end; ++w)
        if (waits_[w].lag <= step) at = std::max(at, ends_[waits_[w].back][waits_[w].slot]);
      *start = at;
      return;
    }
    std::copy_n(&lanes_[m.lane], m.classes, start);
    for (std::size_t w = m.wait; w < m.waits_end; ++w) {
      const Wait& wait = waits_[w];
      if (wait.lag > step) continue;
      const double* end = &ends_[wait.back][wait.slot];
      for (Id c = 0; c < m.classes; ++c) start[c] = std::max(start[c], end[c]);
    }
  }

  /// The op has run from `start` until `end`.
  void finish(const Member& m, int step, const double* start, const double* end) {
    double& last = step_ends_[static_cast<std::size_t>(step)];
    for (Id c = 0; c < m.classes; ++c) {
      lanes_[m.lane + c] = end[c];
      last = std::max(last, end[c]);
    }
    if (sink_ != nullptr)
      sink_->record(m.role, m.op, step, 0, {start, m.classes}, {end, m.classes});
  }

  void local(const Member& m, int step) {
    ready(m, step, start_.data());
    double* end = &ends_[0][m.slot];
    for (Id c = 0; c < m.classes; ++c) end[c] = start_[c] + costs_of_[m.slot + c];
    finish(m, step, start_.data(), end);
  }

  void pair(const Member& a, const Member& b, int step) {
    ready(a, step, start_.data());
    ready(b, step, other_.data());
    const Member& sender =
        std::holds_alternative<program::Send>(role(a.role).ops[a.op].work) ? a : b;
    double* end_a = &ends_[0][a.slot];
    double* end_b = &ends_[0][b.slot];
    for (Id c = 0; c < a.classes; ++c) {
      start_[c] = std::max(start_[c], other_[c]);
      end_a[c] = end_b[c] = start_[c] + costs_of_[sender.slot + c];
    }
    finish(a, step, start_.data(), end_a);
    finish(b, step, start_.data(), end_b);
  }

  void collective(const Event& event, int step) {
    std::fill_n(group_start_.begin(), event.meet->groups, 0.0);
    for (std::size_t m = event.begin; m < event.end; ++m) {
      const auto& group = event.meet->group[m - event.begin];
      ready(members_[m], step, start_.data());
      for (Id c = 0; c < members_[m].classes; ++c)
        group_start_[group[c]] = std::max(group_start_[group[c]], start_[c]);
    }
    for (std::size_t m = event.begin; m < event.end; ++m) {
      const Member& member = members_[m];
      const auto& group = event.meet->group[m - event.begin];
      double* end = &ends_[0][member.slot];
      for (Id c = 0; c < member.classes; ++c) {
        start_[c] = group_start_[group[c]];
        end[c] = start_[c] + costs_of_[member.slot + c];
      }
      finish(member, step, start_.data(), end);
    }
  }

  /// Sets of roles that meet on a channel have no role in common, so one of them names the set.
  const FoldedRendezvous* rendezvous(std::span<const link::RoleOp> event) {
    const Id channel = channel_of(role(event[0].role).ops[event[0].op].work);
    auto& known = rendezvous_[channel * linked_.program.roles.size() + event[0].role];
    if (!known) known = std::make_unique<FoldedRendezvous>(folded(channel, event));
    return known.get();
  }

  /// The groups of classes. Groups that share a class are alike, and then all of their classes are
  /// the same: they are one.
  FoldedRendezvous folded(Id channel, std::span<const link::RoleOp> event) const {
    FoldedRendezvous out;
    for (const link::RoleOp& m : event) out.group.emplace_back(classes(m.role), none);
    const link::Rendezvous meet = rendezvous_of(linked_, channel, event);
    std::vector<Id> one(meet.groups, none);  // group -> the one that stands for it
    for (Id m = 0; m < event.size(); ++m)
      for (std::size_t i = 0; i < meet.group[m].size(); ++i) {
        const Id g = meet.group[m][i];
        if (g == none || one[g] != none) continue;
        const Id known = out.group[m][fold_.class_of[event[m].role][i]];
        one[g] = known != none ? known : static_cast<Id>(out.groups++);
        if (known != none) continue;
        // The group's other members, of every role, stand in the same one.
        for (Id k = 0; k < event.size(); ++k)
          for (std::size_t j = 0; j < meet.group[k].size(); ++j)
            if (meet.group[k][j] == g) out.group[k][fold_.class_of[event[k].role][j]] = one[g];
      }
    return out;
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const Fold& fold_;
  const int steps_;
  TraceSink* sink_;
  std::vector<Slot> first_slot_ = {}, first_lane_ = {};  // by role
  Slot slots_ = 0;
  std::vector<Member> members_ = {};
  std::vector<Wait> waits_ = {};
  std::vector<Event> events_ = {};
  std::vector<std::unique_ptr<FoldedRendezvous>> rendezvous_ =
      {};                                           // [channel][an event's first role]
  std::vector<std::vector<double>> ends_ = {{}};    // of this iteration and those before, by slot
  std::vector<double> costs_of_ = {}, lanes_ = {};  // by slot; the last end, by lane and class
  std::vector<double> start_ = {}, other_ = {}, group_start_ = {};
  std::vector<double> step_ends_ = {};
};

}  // namespace

std::vector<double> dry_run_folded(const link::OrderedProgram& linked, const costs::Costs& costs,
                                   const Fold& fold, int steps, TraceSink* sink) {
  if (needs_events(linked))
    throw ProgramError("max-plus cannot run mailboxes, arrival lanes or free-running roles");
  return FoldedRun(linked, costs, fold, steps, sink).run();
}

}  // namespace rehearse::execution
