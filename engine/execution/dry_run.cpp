// Max-plus over the linked order. The ends of an op over the ranks of its role are one array, kept
// as long as an op that waits for it (its lane's next, or a later `after`) has not run; arrays are
// recycled last in, first out, so that the few that are alive stay in the cache.
#include "engine/execution/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <memory>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/vectorise.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {
namespace {

REHEARSE_CLONES void max_of(double* out, const double* a, const double* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
}
REHEARSE_CLONES void add_one(double* out, const double* start, double cost, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost;
}
REHEARSE_CLONES void add_scaled(double* out, const double* start, double cost, const double* factor,
                                std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost * factor[i];
}
REHEARSE_CLONES void add_product(double* out, const double* start, const double* cost,
                                 const double* factor, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = start[i] + cost[i] * factor[i];
}

/// One array of a double per rank, counted by those who still wait for it.
struct Ends {
  std::vector<double> at = {};
  int users = 0;
};
class Pool {
 public:
  Ends* take(std::size_t places) {
    auto& free = free_[places];
    if (free.empty()) {
      all_.push_back(std::make_unique<Ends>());
      all_.back()->at.resize(places);
      return all_.back().get();
    }
    Ends* ends = free.back();
    free.pop_back();
    return ends;
  }
  void drop(Ends* ends) {
    if (--ends->users == 0) free_[ends->at.size()].push_back(ends);
  }

 private:
  std::vector<std::unique_ptr<Ends>> all_ = {};
  std::map<std::size_t, std::vector<Ends*>> free_ = {};
};

class MaxPlus {
 public:
  MaxPlus(const link::OrderedProgram& linked, const costs::Costs& costs,
          const cluster::Disturber& disturber, int steps, TraceSink& sink)
      : linked_(linked), costs_(costs), disturber_(disturber), steps_(steps), sink_(sink) {
    const program::Program& p = linked.program;
    std::size_t widest = 0;
    ops_.resize(p.roles.size());
    tails_.resize(p.roles.size());
    for (Id r = 0; r < p.roles.size(); ++r) {
      widest = std::max(widest, places(r));
      ops_[r].resize(p.roles[r].ops.size());
      tails_[r].assign(p.roles[r].lanes.size(), nullptr);
    }
    for (const link::OrderedOp& turn : linked.order) ops_[turn.role][turn.op].offset = turn.offset;
    for (Id r = 0; r < p.roles.size(); ++r)
      for (Id o = 0; o < p.roles[r].ops.size(); ++o)
        for (const program::After& a : p.roles[r].ops[o].after) {
          OpState& from = ops_[r][a.op];
          const int back = ops_[r][o].offset + a.lag - from.offset;
          assert(back >= 0);
          ++from.users;
          if (static_cast<std::size_t>(back) >= from.recent.size())
            from.recent.resize(static_cast<std::size_t>(back) + 1);
        }
    by_event_.assign(linked.events.size(), nullptr);
    zeros_.assign(widest, 0);
    for (auto* v : {&start_, &other_, &factor_, &group_start_, &group_factor_}) v->resize(widest);
    group_start_.resize(static_cast<std::size_t>(p.world_size));
    group_factor_.resize(static_cast<std::size_t>(p.world_size));
  }

  DryRun run() {
    const auto& order = linked_.order;
    for (int i = 0; i < steps_ + linked_.max_offset; ++i) {
      for (std::size_t k = 0; k < order.size();) {
        const link::OrderedOp& turn = order[k];
        const auto event = linked_.events[linked_.event_of[turn.role][turn.op]];
        const int step = i - turn.offset;
        k += event.size();
        if (step < 0 || step >= steps_) continue;
        const program::Work& work = linked_.program.roles[turn.role].ops[turn.op].work;
        if (std::holds_alternative<program::Collective>(work))
          collective(event, step);
        else if (event.size() == 2)
          pair(event, step);
        else
          local(turn, step);
      }
    }
    return out_;
  }

 private:
  struct OpState {
    int offset = 0;
    int users = 0;                   // ops that wait for an instance by `after`
    std::vector<Ends*> recent = {};  // by macro-iteration modulo its size
  };

  const program::Role& role(Id r) const { return linked_.program.roles[r]; }
  std::size_t places(Id r) const { return role(r).ranks.size(); }

  // The maximum over everything that the op waits for, in `scratch` or where it already lies.
  const double* ready(Id r, Id o, int step, std::vector<double>& scratch) {
    const program::Op& op = role(r).ops[o];
    const std::size_t n = places(r);
    const Ends* tail = tails_[r][op.lane];
    const double* at = tail ? tail->at.data() : nullptr;
    for (const program::After& a : op.after) {
      if (a.lag > step) continue;
      const Ends* ends = recent(r, a.op, step - a.lag);
      if (ends == tail) continue;
      if (at) {
        max_of(scratch.data(), at, ends->at.data(), n);
        at = scratch.data();
      } else {
        at = ends->at.data();
      }
    }
    return at ? at : zeros_.data();
  }
  Ends*& recent(Id r, Id o, int step) {
    OpState& s = ops_[r][o];
    return s.recent[static_cast<std::size_t>(step + s.offset) % s.recent.size()];
  }

  // The op has run: its lane and those who wait for it hold `ends`; what it waited for is let go.
  void finish(Id r, Id o, int step, Ends* ends) {
    const program::Op& op = role(r).ops[o];
    OpState& s = ops_[r][o];
    ends->users += s.users + 1;
    if (s.users) recent(r, o, step) = ends;
    Ends*& tail = tails_[r][op.lane];
    if (tail) pool_.drop(tail);
    tail = ends;
    for (const program::After& a : op.after)
      if (a.lag <= step) pool_.drop(recent(r, a.op, step - a.lag));
    out_.instances += static_cast<std::int64_t>(ends->at.size());
  }

  void emit(Id r, Id o, int step, const double* start, const Ends& ends) {
    sink_.record(r, o, step, 0, {start, ends.at.size()}, ends.at);
  }

  void local(const link::OrderedOp& turn, int step) {
    const program::Role& who = role(turn.role);
    const std::size_t n = places(turn.role);
    const double* start = ready(turn.role, turn.op, step, start_);
    Ends* ends = pool_.take(n);
    const auto cost = costs_.seconds(turn.role, turn.op);
    if (disturber_.quiet_compute() && cost.size() == 1) {
      add_one(ends->at.data(), start, cost[0], n);
    } else {
      if (disturber_.quiet_compute())
        std::fill_n(factor_.begin(), n, 1.0);
      else
        disturber_.compute_factors(who.ranks, step, turn.op, {factor_.data(), n});
      if (cost.size() == 1)
        add_scaled(ends->at.data(), start, cost[0], factor_.data(), n);
      else
        add_product(ends->at.data(), start, cost.data(), factor_.data(), n);
    }
    emit(turn.role, turn.op, step, start, *ends);
    finish(turn.role, turn.op, step, ends);
  }

  void pair(std::span<const link::RoleOp> event, int step) {
    const link::RoleOp a = event[0], b = event[1];
    const bool a_sends = std::holds_alternative<program::Send>(role(a.role).ops[a.op].work);
    const link::RoleOp sender = a_sends ? a : b;
    const std::size_t n = places(a.role);
    const double* start = ready(a.role, a.op, step, start_);
    max_of(start_.data(), start, ready(b.role, b.op, step, other_), n);
    Ends* ends = pool_.take(n);
    const auto cost = costs_.seconds(sender.role, sender.op);
    for (std::size_t i = 0; i < n; ++i) {
      double factor = 1;
      if (!disturber_.quiet_links()) {
        const Id x = role(a.role).ranks[i], y = role(b.role).ranks[i];
        factor = disturber_.link_factor(std::min(x, y), step, x < y ? a.op : b.op);
      }
      ends->at[i] = start_[i] + cost[cost.size() == 1 ? 0 : i] * factor;
    }
    emit(a.role, a.op, step, start_.data(), *ends);
    emit(b.role, b.op, step, start_.data(), *ends);
    finish(a.role, a.op, step, ends);
    finish(b.role, b.op, step, ends);
  }

  void collective(std::span<const link::RoleOp> event, int step) {
    const link::Rendezvous& meet = rendezvous(event);
    double* at = group_start_.data();
    std::fill_n(at, meet.groups, 0.0);
    for (std::size_t m = 0; m < event.size(); ++m) {
      const link::RoleOp who = event[m];
      const double* start = ready(who.role, who.op, step, start_);
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
    std::fill_n(group_factor_.begin(), meet.groups, 1.0);
    if (!disturber_.quiet_links())
      for (Id g = 0; g < meet.groups; ++g)
        group_factor_[g] =
            disturber_.link_factor(meet.lowest[g], step, event[meet.lowest_member[g]].op);
    for (std::size_t m = 0; m < event.size(); ++m) {
      const link::RoleOp who = event[m];
      const auto& group = meet.group[m];
      const std::size_t n = group.size();
      Ends* ends = pool_.take(n);
      const auto cost = costs_.seconds(who.role, who.op);
      for (std::size_t i = 0; i < n; ++i) {
        start_[i] = at[group[i]];
        ends->at[i] = start_[i] + cost[cost.size() == 1 ? 0 : i] * group_factor_[group[i]];
      }
      emit(who.role, who.op, step, start_.data(), *ends);
      finish(who.role, who.op, step, ends);
    }
  }

  const link::Rendezvous& rendezvous(std::span<const link::RoleOp> event) {
    const link::Rendezvous*& known = by_event_[linked_.event_of[event[0].role][event[0].op]];
    if (!known) {
      const Id channel = channel_of(role(event[0].role).ops[event[0].op].work);
      std::vector<Id> key = {channel};
      for (const link::RoleOp& m : event) key.push_back(m.role);
      auto it = rendezvous_.find(key);
      if (it == rendezvous_.end())
        it = rendezvous_.emplace(std::move(key), rendezvous_of(linked_, channel, event)).first;
      known = &it->second;
    }
    return *known;
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Disturber& disturber_;
  const int steps_;
  TraceSink& sink_;
  Pool pool_ = {};
  std::vector<std::vector<OpState>> ops_ = {};                   // [role][op]
  std::vector<std::vector<Ends*>> tails_ = {};                   // [role][lane]
  std::map<std::vector<Id>, link::Rendezvous> rendezvous_ = {};  // by channel and roles
  std::vector<const link::Rendezvous*> by_event_ = {};
  std::vector<double> zeros_ = {}, start_ = {}, other_ = {}, factor_ = {}, group_start_ = {},
                      group_factor_ = {};
  DryRun out_ = {};
};

/// Passes everything on and remembers the last end.
class Clock : public TraceSink {
 public:
  explicit Clock(TraceSink& sink) : sink_(sink) {}
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  double last = 0;

 private:
  TraceSink& sink_;
};
void Clock::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                   std::span<const double> ends) {
  last = largest(ends.data(), ends.size(), last);
  sink_.record(role, op, step, first_place, starts, ends);
}

}  // namespace

bool needs_events(const link::OrderedProgram& linked) {
  if (linked.mailboxes) return true;
  for (const program::Role& role : linked.program.roles) {
    if (role.free_running) return true;
    for (const program::Lane& lane : role.lanes)
      if (lane.order == program::Order::arrival) return true;
  }
  return false;
}

DryRun dry_run_max_plus(const link::OrderedProgram& linked, const costs::Costs& costs,
                        const cluster::Disturber& disturber, int steps, TraceSink& sink) {
  if (needs_events(linked))
    throw ProgramError("max-plus cannot run mailboxes, arrival lanes or free-running roles");
  Clock clock(sink);
  DryRun out = MaxPlus(linked, costs, disturber, steps, clock).run();
  out.seconds = clock.last;
  return out;
}

DryRun dry_run(const link::OrderedProgram& linked, const costs::Costs& costs,
               const cluster::Disturber& disturber, int steps, TraceSink& sink) {
  return needs_events(linked) ? dry_run_events(linked, costs, disturber, steps, sink)
                              : dry_run_max_plus(linked, costs, disturber, steps, sink);
}

}  // namespace rehearse::execution
