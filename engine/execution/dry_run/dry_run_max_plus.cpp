// Max-plus over the linked order. One array holds the ends of an op on all places of its role. The
// array is kept until every op that waits for it has run (the next op on its lane, and the ops of
// the WaitTable). Freed arrays are reused, so memory does not grow with the number of ops.
#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "engine/base/errors.h"
#include "engine/base/numbers/vectorise.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/dry_run/ends_pool.h"
#include "engine/execution/dry_run/fold.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {
namespace {

/// Max-plus over OrderedProgram::order. A place is a rank of a role; in a folded run it stands for
/// all ranks of its class.
class MaxPlus {
 public:
  /// `fold` null: not folded. `disturber` null: no disturbances (always so in a folded run). `sink`
  /// null: no trace.
  MaxPlus(const link::OrderedProgram& linked, const costs::Costs& costs, const Fold* fold,
          const cluster::Disturber* disturber, int steps, TraceSink* sink)
      : linked_(linked),
        costs_(costs),
        fold_(fold),
        disturber_(disturber),
        steps_(steps),
        sink_(sink),
        step_ends_(static_cast<std::size_t>(steps), 0.0) {
    rendezvous_.resize(linked.program.channels.size() * linked.roles.size());
    place_roles();
    lay_out();
    view_folded_seconds();
    std::size_t widest = 0;
    for (const RoleState& role : roles_) widest = std::max(widest, role.places);
    zeros_.assign(widest, 0);
    for (auto* v : {&start_, &other_, &factor_}) v->resize(widest);
    group_start_.resize(static_cast<std::size_t>(linked.program.world_size));
    group_factor_.assign(static_cast<std::size_t>(linked.program.world_size), 1.0);
  }

  void run() {
    for (iteration_ = 0; iteration_ < steps_ + linked_.max_offset; ++iteration_) {
      for (const Event& event : events_) {
        const int step = iteration_ - event.offset;
        if (step < 0 || step >= steps_) continue;
        if (event.meet != nullptr && !members_[event.begin].when.due(step))
          for (std::uint32_t m = event.begin; m < event.end; ++m) local(members_[m], step);
        else if (event.meet != nullptr)
          collective(event, step);
        else if (event.end - event.begin == 2)
          pair(members_[event.begin], members_[event.begin + 1], step);
        else
          local(members_[event.begin], step);
      }
      if (sink_ != nullptr && sink_->may_stop()) return;
    }
  }

  std::int64_t instances() const { return instances_; }
  /// By step: when its last op ended.
  const std::vector<double>& step_ends() const { return step_ends_; }

 private:
  /// Ring buffer with the latest ends of an op that other ops wait for: ends_[first +
  /// (macro-iteration & mask)].
  struct Ring {
    std::uint32_t first = 0, mask = 0;
    int users = 0;  // number of waits for each instance
  };
  struct MemberWait {
    const Ring* on = nullptr;
    int lag = 0, back = 0;  // as in link::Wait
  };
  /// One op of an event, with everything needed to run it.
  struct Member {
    Id role = none, op = none;
    std::uint32_t lane = 0;  // index into tails_
    bool sends = false;
    program::When when = {};
    Ring* ring = nullptr;
    std::uint32_t wait = 0, waits_end = 0;  // index range in waits_
    std::span<const double> seconds = {};   // cost: by place, or one number for all places
  };
  struct Event {
    std::uint32_t begin = 0, end = 0;  // index range of its members
    int offset = 0;
    const link::Rendezvous* meet = nullptr;  // collectives only; null: none
  };
  struct RoleState {
    std::size_t places = 0;
    std::vector<Ring> rings = {};  // by op
    std::uint32_t first_lane = 0;
    EndsPool pool = {};
  };

  void place_roles() {
    roles_.resize(linked_.roles.size());
    std::uint32_t lanes = 0, slots = 0;
    for (Id r = 0; r < roles_.size(); ++r) {
      const program::Role& role = linked_.program.roles[r];
      RoleState& state = roles_[r];
      state.places = fold_ ? fold_->representative[r].size() : role.ranks.size();
      state.first_lane = lanes;
      lanes += static_cast<std::uint32_t>(role.lanes.size());
      state.rings.resize(role.ops.size());
      for (Id o = 0; o < role.ops.size(); ++o)
        for (const link::Wait& wait : linked_.roles[r].waits.of(o)) {
          assert(wait.back >= 0);
          Ring& ring = state.rings[wait.op];
          ++ring.users;
          while (ring.mask < static_cast<std::uint32_t>(wait.back)) ring.mask = 2 * ring.mask + 1;
        }
      for (Ring& ring : state.rings)
        if (ring.users > 0) ring.first = slots, slots += ring.mask + 1;
    }
    tails_.assign(lanes, nullptr);
    ends_.assign(slots, nullptr);
  }
  /// Fills all tables, in the order in which `run` reads them.
  void lay_out() {
    const auto& order = linked_.order;
    members_.reserve(order.size());
    waits_.reserve(2 * order.size());
    events_.reserve(linked_.events.size());
    for (std::size_t k = 0; k < order.size();) {
      const auto event = linked_.events[linked_.event_of[order[k].role][order[k].op]];
      Event& out = events_.emplace_back();
      out.begin = static_cast<std::uint32_t>(members_.size()), out.offset = order[k].offset;
      for (const link::RoleOp& who : event) add_member(who);
      out.end = static_cast<std::uint32_t>(members_.size());
      if (std::holds_alternative<program::Collective>(op_of(event[0]).work))
        out.meet = rendezvous(event);
      k += event.size();
    }
  }
  void add_member(link::RoleOp who) {
    RoleState& role = roles_[who.role];
    const program::Op& op = op_of(who);
    Member& member = members_.emplace_back();
    member = {.role = who.role,
              .op = who.op,
              .lane = role.first_lane + op.lane,
              .sends = std::holds_alternative<program::Send>(op.work),
              .when = op.when,
              .ring = &role.rings[who.op],
              .wait = static_cast<std::uint32_t>(waits_.size()),
              .seconds = seconds_of(who.role, who.op)};
    for (const link::Wait& wait : linked_.roles[who.role].waits.of(who.op))
      waits_.push_back({&role.rings[wait.op], wait.lag, wait.back});
    member.waits_end = static_cast<std::uint32_t>(waits_.size());
  }
  /// Of the places of a role: a row of `costs`, or in a folded run the classes' part of it, which
  /// `view_folded_seconds` fills in when all are there.
  std::span<const double> seconds_of(Id r, Id o) {
    const std::span<const double> row = costs_.seconds(r, o);
    if (fold_ == nullptr || row.size() == 1) return row;
    folded_.emplace_back(members_.size() - 1, folded_seconds_.size());
    for (const Id place : fold_->representative[r]) folded_seconds_.push_back(row[place]);
    return {};
  }
  void view_folded_seconds() {
    for (const auto& [member, first] : folded_)
      members_[member].seconds = {folded_seconds_.data() + first,
                                  roles_[members_[member].role].places};
  }

  const program::Op& op_of(link::RoleOp who) const {
    return linked_.program.roles[who.role].ops[who.op];
  }
  std::span<const MemberWait> waits_of(const Member& member) const {
    return {waits_.data() + member.wait, waits_.data() + member.waits_end};
  }
  Ends*& slot(const Ring& ring, int back) {
    return ends_[ring.first + (static_cast<std::uint32_t>(iteration_ - back) & ring.mask)];
  }

  /// The earliest start: the maximum over the ends of all ops that this op waits for, by place. The
  /// result is in `scratch` or, when there is only one such array, that array itself.
  const double* ready(const Member& member, int step, std::vector<double>& scratch) {
    const std::size_t n = roles_[member.role].places;
    const Ends* tail = tails_[member.lane];
    const double* at = tail ? tail->at.data() : nullptr;
    for (const MemberWait& wait : waits_of(member)) {
      if (wait.lag > step) continue;
      const Ends* ends = slot(*wait.on, wait.back);
      if (ends == tail) continue;
      if (at == nullptr) {
        at = ends->at.data();
      } else if (n == 1) {
        if (*at < ends->at[0]) at = ends->at.data();
      } else {
        max_of(scratch.data(), at, ends->at.data(), n);
        at = scratch.data();
      }
    }
    return at ? at : zeros_.data();
  }

  /// Records that the op has run: its lane and the ops that wait for it now use `ends`. Releases
  /// the arrays that the op waited for.
  void finish(const Member& member, int step, const double* start, Ends* ends) {
    RoleState& role = roles_[member.role];
    if (sink_ != nullptr)
      sink_->record(member.role, member.op, step, 0, {start, role.places}, ends->at);
    double& last = step_ends_[static_cast<std::size_t>(step)];
    last = role.places == 1 ? std::max(last, ends->at[0])
                            : largest(ends->at.data(), role.places, last);
    ends->users += member.ring->users + 1;
    if (member.ring->users > 0) slot(*member.ring, 0) = ends;
    Ends*& tail = tails_[member.lane];
    if (tail) role.pool.drop(tail);
    tail = ends;
    for (const MemberWait& wait : waits_of(member))
      if (wait.lag <= step) role.pool.drop(slot(*wait.on, wait.back));
    instances_ += static_cast<std::int64_t>(role.places);
  }

  void local(const Member& who, int step) {
    RoleState& role = roles_[who.role];
    const std::size_t n = role.places;
    const double* start = ready(who, step, start_);
    Ends* ends = role.pool.take(n);
    static constexpr double no_time = 0;
    const std::span<const double> seconds =
        who.when.due(step) ? who.seconds : std::span(&no_time, 1);
    const bool quiet = disturber_ == nullptr || disturber_->quiet_compute();
    if (quiet && n == 1) {
      ends->at[0] = *start + seconds[0];
    } else if (quiet && seconds.size() == 1) {
      add_to_all(ends->at.data(), start, seconds[0], n);
    } else {
      if (quiet)
        std::fill_n(factor_.begin(), n, 1.0);
      else
        disturber_->compute_factors(linked_.program.roles[who.role].ranks, step, who.op,
                                    {factor_.data(), n});
      if (seconds.size() == 1)
        add_scaled(ends->at.data(), start, seconds[0], factor_.data(), n);
      else
        add_product(ends->at.data(), start, seconds.data(), factor_.data(), n);
    }
    finish(who, step, start, ends);
  }

  void pair(const Member& a, const Member& b, int step) {
    const std::size_t n = roles_[a.role].places;
    const double* start = ready(a, step, start_);
    const double* other = ready(b, step, other_);
    if (n == 1)
      start_[0] = std::max(*start, *other);
    else
      max_of(start_.data(), start, other, n);
    Ends* ends = roles_[a.role].pool.take(n);
    Ends* same = roles_[b.role].pool.take(n);
    const std::span<const double> seconds = (a.sends ? a : b).seconds;
    for (std::size_t i = 0; i < n; ++i) {
      double factor = 1;
      if (disturber_ != nullptr && !disturber_->quiet_links()) {
        const Id x = linked_.program.roles[a.role].ranks[i];
        const Id y = linked_.program.roles[b.role].ranks[i];
        factor = disturber_->link_factor(std::min(x, y), step, x < y ? a.op : b.op);
      }
      ends->at[i] = same->at[i] = start_[i] + seconds[seconds.size() == 1 ? 0 : i] * factor;
    }
    finish(a, step, start_.data(), ends);
    finish(b, step, start_.data(), same);
  }

  void collective(const Event& event, int step) {
    const link::Rendezvous& meet = *event.meet;
    const std::span<const Member> members{members_.data() + event.begin,
                                          members_.data() + event.end};
    double* at = group_start_.data();
    std::fill_n(at, meet.groups, 0.0);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const double* start = ready(members[m], step, start_);
      if (meet.size && meet.inner > 1) {
        for (Id o = 0; o < meet.outer; ++o)
          for (Id i = 0; i < meet.size; ++i)
            max_of(at + o * meet.inner, at + o * meet.inner,
                   start + (o * meet.size + i) * meet.inner, meet.inner);
      } else if (meet.size) {
        for (Id g = 0; g < meet.groups; ++g) {
          double latest = start[g * meet.size];
          for (Id i = 1; i < meet.size; ++i) latest = std::max(latest, start[g * meet.size + i]);
          at[g] = latest;
        }
      } else {
        const auto& group = meet.group[m];
        for (std::size_t i = 0; i < group.size(); ++i)
          at[group[i]] = std::max(at[group[i]], start[i]);
      }
    }
    if (disturber_ != nullptr && !disturber_->quiet_links())
      for (Id g = 0; g < meet.groups; ++g)
        group_factor_[g] =
            disturber_->link_factor(meet.lowest[g], step, members[meet.lowest_member[g]].op);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto& group = meet.group[m];
      RoleState& role = roles_[members[m].role];
      Ends* ends = role.pool.take(role.places);
      const std::span<const double> seconds = members[m].seconds;
      for (std::size_t i = 0; i < role.places; ++i) {
        start_[i] = at[group[i]];
        ends->at[i] = start_[i] + seconds[seconds.size() == 1 ? 0 : i] * group_factor_[group[i]];
      }
      finish(members[m], step, start_.data(), ends);
    }
  }

  /// The sets of roles that meet on a channel are disjoint, so one role identifies its set.
  const link::Rendezvous* rendezvous(std::span<const link::RoleOp> event) {
    const Id channel = channel_of(op_of(event[0]).work);
    auto& known = rendezvous_[std::size_t{channel} * roles_.size() + event[0].role];
    if (!known) {
      known = std::make_unique<link::Rendezvous>(rendezvous_of(linked_, channel, event));
      if (fold_) *known = folded(*known, event, *fold_);
    }
    return known.get();
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const Fold* fold_;
  const cluster::Disturber* disturber_;
  const int steps_;
  TraceSink* sink_;
  int iteration_ = 0;
  std::vector<RoleState> roles_ = {};
  std::vector<Member> members_ = {};
  std::vector<MemberWait> waits_ = {};
  std::vector<Event> events_ = {};
  std::vector<Ends*> tails_ = {};  // by lane: the ends of the last op that ran
  std::vector<Ends*> ends_ = {};   // the slots of all rings
  std::vector<double> folded_seconds_ = {};
  std::vector<std::pair<std::size_t, std::size_t>> folded_ = {};    // member, into folded_seconds_
  std::vector<std::unique_ptr<link::Rendezvous>> rendezvous_ = {};  // [channel][first role]
  std::vector<double> zeros_ = {}, start_ = {}, other_ = {}, factor_ = {}, group_start_ = {},
                      group_factor_ = {};
  std::int64_t instances_ = 0;
  std::vector<double> step_ends_;
};

void need_no_events(const link::OrderedProgram& linked) {
  if (needs_events(linked))
    throw ProgramError("max-plus cannot run mailboxes, arrival lanes or free-running roles");
}

}  // namespace

DryRun dry_run_max_plus(const link::OrderedProgram& linked, const costs::Costs& costs,
                        const cluster::Disturber& disturber, int steps, TraceSink& sink) {
  need_no_events(linked);
  MaxPlus max_plus(linked, costs, nullptr, &disturber, steps, &sink);
  max_plus.run();
  const std::vector<double>& ends = max_plus.step_ends();
  return {.seconds = largest(ends.data(), ends.size(), 0), .instances = max_plus.instances()};
}

std::vector<double> dry_run_folded(const link::OrderedProgram& linked, const costs::Costs& costs,
                                   const Fold& fold, int steps, TraceSink* sink) {
  need_no_events(linked);
  MaxPlus max_plus(linked, costs, &fold, nullptr, steps, sink);
  max_plus.run();
  return max_plus.step_ends();
}

}  // namespace rehearse::execution
