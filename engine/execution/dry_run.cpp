// Max-plus over the linked order. The ends of an op over the ranks of its role are one array, kept
// as long as an op that waits for it (its lane's next, or a later `after`) has not run; arrays are
// recycled last in, first out, so that the few that are alive stay in the cache.
#include "engine/execution/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <deque>
#include <map>
#include <memory>

#include "engine/base/errors.h"
#include "engine/base/vectorise.h"
#include "engine/execution/fold.h"
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

/// When an op ended: one number for each place of its role. `users` counts who still needs it.
struct Ends {
  std::vector<double> at = {};
  int users = 0;
};
/// Arrays of the places of one role. The one that was let go last is taken first, so that the few
/// that are in use stay in the cache.
class Pool {
 public:
  Ends* take(std::size_t places) {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Ends>());
      all_.back()->at.resize(places);
      return all_.back().get();
    }
    Ends* ends = free_.back();
    free_.pop_back();
    return ends;
  }
  void drop(Ends* ends) {
    if (--ends->users == 0) free_.push_back(ends);
  }

 private:
  std::vector<std::unique_ptr<Ends>> all_ = {};
  std::vector<Ends*> free_ = {};
};

/// Max-plus over OrderedProgram::order. A place is a rank of a role; in a folded run it stands for
/// all ranks of its class.
class MaxPlus {
 public:
  /// `fold`: null, nothing is folded. `disturber`: null, nothing is disturbed, and so in a folded
  /// run. `sink`: may be null.
  MaxPlus(const link::OrderedProgram& linked, const costs::Costs& costs, const Fold* fold,
          const cluster::Disturber* disturber, int steps, TraceSink* sink)
      : linked_(linked),
        costs_(costs),
        fold_(fold),
        disturber_(disturber),
        steps_(steps),
        sink_(sink),
        step_ends_(static_cast<std::size_t>(steps), 0.0) {
    for (Id r = 0; r < linked.roles.size(); ++r) lay_out(r);
    by_event_.assign(linked.events.size(), nullptr);
    std::size_t widest = 0;
    for (const RoleState& role : roles_) widest = std::max(widest, role.places);
    zeros_.assign(widest, 0);
    for (auto* v : {&start_, &other_, &factor_}) v->resize(widest);
    group_start_.resize(static_cast<std::size_t>(linked.program.world_size));
    group_factor_.assign(static_cast<std::size_t>(linked.program.world_size), 1.0);
  }

  void run() {
    const auto& order = linked_.order;
    for (iteration_ = 0; iteration_ < steps_ + linked_.max_offset; ++iteration_) {
      for (std::size_t k = 0; k < order.size();) {
        const link::OrderedOp& first = order[k];
        const auto event = linked_.events[linked_.event_of[first.role][first.op]];
        const int step = iteration_ - first.offset;
        k += event.size();
        if (step < 0 || step >= steps_) continue;
        if (std::holds_alternative<program::Collective>(op_of(event[0]).work))
          collective(event, step);
        else if (event.size() == 2)
          pair(event, step);
        else
          local(event[0], step);
      }
    }
  }

  std::int64_t instances() const { return instances_; }
  /// When each step's last op ended.
  const std::vector<double>& step_ends() const { return step_ends_; }

 private:
  struct OpState {
    int users = 0;                         // ops that wait for an instance
    std::vector<Ends*> recent = {};        // by macro-iteration modulo its size
    std::span<const double> seconds = {};  // of the op: of every place, or one number for all
  };
  struct RoleState {
    std::size_t places = 0;
    std::vector<OpState> ops = {};
    std::vector<Ends*> tails = {};  // by lane: of the last op that ran
    Pool pool = {};
  };

  void lay_out(Id r) {
    const program::Role& role = linked_.program.roles[r];
    RoleState& state = roles_.emplace_back();
    state.places = fold_ ? fold_->representative[r].size() : role.ranks.size();
    state.ops.resize(role.ops.size());
    state.tails.assign(role.lanes.size(), nullptr);
    for (Id o = 0; o < role.ops.size(); ++o) {
      state.ops[o].seconds = seconds_of(r, o);
      for (const link::Wait& wait : linked_.roles[r].waits.of(o)) {
        assert(wait.back >= 0);
        OpState& from = state.ops[wait.op];
        ++from.users;
        if (static_cast<std::size_t>(wait.back) >= from.recent.size())
          from.recent.resize(static_cast<std::size_t>(wait.back) + 1);
      }
    }
  }
  std::span<const double> seconds_of(Id r, Id o) {
    const std::span<const double> row = costs_.seconds(r, o);
    if (fold_ == nullptr || row.size() == 1) return row;
    std::vector<double>& folded = folded_seconds_.emplace_back();
    for (const Id place : fold_->representative[r]) folded.push_back(row[place]);
    return folded;
  }

  const program::Op& op_of(link::RoleOp who) const {
    return linked_.program.roles[who.role].ops[who.op];
  }
  Ends*& recent(link::RoleOp who, int back) {
    std::vector<Ends*>& ends = roles_[who.role].ops[who.op].recent;
    return ends[static_cast<std::size_t>(iteration_ - back) % ends.size()];
  }

  /// The maximum over everything that the op waits for, in `scratch` or where it already lies.
  const double* ready(link::RoleOp who, int step, std::vector<double>& scratch) {
    const RoleState& role = roles_[who.role];
    const Ends* tail = role.tails[op_of(who).lane];
    const double* at = tail ? tail->at.data() : nullptr;
    for (const link::Wait& wait : linked_.roles[who.role].waits.of(who.op)) {
      if (wait.lag > step) continue;
      const Ends* ends = recent({who.role, wait.op}, wait.back);
      if (ends == tail) continue;
      if (at) {
        max_of(scratch.data(), at, ends->at.data(), role.places);
        at = scratch.data();
      } else {
        at = ends->at.data();
      }
    }
    return at ? at : zeros_.data();
  }

  /// The op has run: its lane and the ops that wait for it hold `ends`; what it waited for is let
  /// go.
  void finish(link::RoleOp who, int step, const double* start, Ends* ends) {
    RoleState& role = roles_[who.role];
    if (sink_ != nullptr) sink_->record(who.role, who.op, step, 0, {start, role.places}, ends->at);
    double& last = step_ends_[static_cast<std::size_t>(step)];
    last = largest(ends->at.data(), role.places, last);
    const OpState& op = role.ops[who.op];
    ends->users += op.users + 1;
    if (op.users) recent(who, 0) = ends;
    Ends*& tail = role.tails[op_of(who).lane];
    if (tail) role.pool.drop(tail);
    tail = ends;
    for (const link::Wait& wait : linked_.roles[who.role].waits.of(who.op))
      if (wait.lag <= step) role.pool.drop(recent({who.role, wait.op}, wait.back));
    instances_ += static_cast<std::int64_t>(role.places);
  }

  void local(link::RoleOp who, int step) {
    RoleState& role = roles_[who.role];
    const std::size_t n = role.places;
    const double* start = ready(who, step, start_);
    Ends* ends = role.pool.take(n);
    const std::span<const double> seconds = role.ops[who.op].seconds;
    const bool quiet = disturber_ == nullptr || disturber_->quiet_compute();
    if (quiet && seconds.size() == 1) {
      add_one(ends->at.data(), start, seconds[0], n);
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

  void pair(std::span<const link::RoleOp> event, int step) {
    const link::RoleOp a = event[0], b = event[1];
    const link::RoleOp sender = std::holds_alternative<program::Send>(op_of(a).work) ? a : b;
    const std::size_t n = roles_[a.role].places;
    const double* start = ready(a, step, start_);
    max_of(start_.data(), start, ready(b, step, other_), n);
    Ends* ends = roles_[a.role].pool.take(n);
    Ends* same = roles_[b.role].pool.take(n);
    const std::span<const double> seconds = roles_[sender.role].ops[sender.op].seconds;
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

  void collective(std::span<const link::RoleOp> event, int step) {
    const link::Rendezvous& meet = rendezvous(event);
    double* at = group_start_.data();
    std::fill_n(at, meet.groups, 0.0);
    for (std::size_t m = 0; m < event.size(); ++m) {
      const double* start = ready(event[m], step, start_);
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
            disturber_->link_factor(meet.lowest[g], step, event[meet.lowest_member[g]].op);
    for (std::size_t m = 0; m < event.size(); ++m) {
      const auto& group = meet.group[m];
      RoleState& role = roles_[event[m].role];
      Ends* ends = role.pool.take(role.places);
      const std::span<const double> seconds = role.ops[event[m].op].seconds;
      for (std::size_t i = 0; i < role.places; ++i) {
        start_[i] = at[group[i]];
        ends->at[i] = start_[i] + seconds[seconds.size() == 1 ? 0 : i] * group_factor_[group[i]];
      }
      finish(event[m], step, start_.data(), ends);
    }
  }

  const link::Rendezvous& rendezvous(std::span<const link::RoleOp> event) {
    const link::Rendezvous*& known = by_event_[linked_.event_of[event[0].role][event[0].op]];
    if (!known) {
      const Id channel = channel_of(op_of(event[0]).work);
      // Sets of roles that meet on a channel have no role in common, so one of them names the set.
      const auto [it, fresh] = rendezvous_.try_emplace({channel, event[0].role});
      if (fresh) {
        it->second = rendezvous_of(linked_, channel, event);
        if (fold_) it->second = folded(it->second, event, *fold_);
      }
      known = &it->second;
    }
    return *known;
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const Fold* fold_;
  const cluster::Disturber* disturber_;
  const int steps_;
  TraceSink* sink_;
  int iteration_ = 0;
  std::vector<RoleState> roles_ = {};
  std::deque<std::vector<double>> folded_seconds_ = {};            // what OpState::seconds views
  std::map<std::pair<Id, Id>, link::Rendezvous> rendezvous_ = {};  // by channel and first role
  std::vector<const link::Rendezvous*> by_event_ = {};
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

DryRun dry_run(const link::OrderedProgram& linked, const costs::Costs& costs,
               const cluster::Disturber& disturber, int steps, TraceSink& sink) {
  return needs_events(linked) ? dry_run_events(linked, costs, disturber, steps, sink)
                              : dry_run_max_plus(linked, costs, disturber, steps, sink);
}

}  // namespace rehearse::execution
