// The dry run of programs whose order depends on who comes first: mailboxes, lanes by arrival,
// roles that run freely. An event queue in time order (equal times: in the order in which they were
// scheduled); each op begins when its lane is free, what it waits for has ended, and its partners
// are as ready.
//
// An op on a lane by arrival follows its own previous instance, and nothing else on the lane; of
// the ready ones the one that became so first goes first (then the earlier step, then the earlier
// op). A Take holds its lane until a message is there. Free-running roles begin no iteration after
// the others have served their steps; what they have not ended by then is not in the trace.
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include "engine/dry_run.h"
#include "engine/errors.h"
#include "engine/rendezvous.h"

namespace rehearse {
namespace {

class Events {
 public:
  Events(const LinkedProgram& linked, const Costs& costs, const Disturber& disturber, int steps,
         TraceSink& sink)
      : linked_(linked), costs_(costs), disturber_(disturber), sink_(sink) {
    const Program& p = linked.program;
    for (Id r = 0; r < p.roles.size(); ++r) {
      const Role& role = p.roles[r];
      RoleState& state = roles_.emplace_back();
      state.limit = role.free_running ? std::numeric_limits<int>::max() : steps;
      state.lags.resize(role.ops.size());
      state.dependents.resize(role.ops.size());
      for (Id o = 0; o < role.ops.size(); ++o) {
        state.max_shift = std::max<int>(state.max_shift, role.ops[o].shift);
        auto wait = [&](Id on, int lag) {
          state.lags[o].push_back(lag);
          state.dependents[on].push_back({o, lag});
        };
        for (const After& a : role.ops[o].after) wait(a.op, a.lag);
        if (arrival(r, role.ops[o].lane)) wait(o, 1);
      }
      state.places.resize(role.ranks.size());
      for (Place& place : state.places) place.lanes.resize(role.lanes.size());
      if (!role.free_running)
        expected_ += static_cast<std::int64_t>(role.ranks.size() * role.ops.size()) * steps;
    }
    senders_.resize(p.channels.size());
  }

  DryRun run() {
    for (Id r = 0; r < roles_.size(); ++r)
      for (Id i = 0; i < roles_[r].places.size(); ++i)
        for (Id l = 0; l < roles_[r].places[i].lanes.size(); ++l) {
          if (arrival(r, l) && roles_[r].limit > 0)
            for (Id o : linked_.roles[r].lane_ops[l])
              if (need(r, o, 0) == 0) roles_[r].places[i].lanes[l].ready.push_back({0.0, 0, o});
          woken_.push_back({r, i, l});
        }
    wake();
    while (!queue_.empty() && (finished_ < expected_ || queue_.top().time <= now_)) {
      const Done done = queue_.top();
      queue_.pop();
      now_ = done.time;
      end(done);
      wake();
    }
    if (finished_ < expected_) stuck();
    out_.seconds = now_;
    return out_;
  }

 private:
  struct Instance {
    std::uint32_t missing = 0;
  };
  struct StepState {
    std::vector<Instance> ops = {};
    std::size_t remaining = 0;
  };
  struct Ready {
    double since = 0;
    int step = 0;
    Id op = none;
    friend auto operator<=>(const Ready&, const Ready&) = default;
  };
  struct LaneState {
    bool busy = false;
    int iteration = 0;
    std::size_t next = 0;
    std::vector<Ready> ready = {};  // by arrival: a heap
    Ready current = {};
  };
  struct Place {
    std::vector<LaneState> lanes = {};
    std::deque<StepState> steps = {};  // from first_step on
    int first_step = 0;
  };
  struct Dependent {
    Id op = none;
    int lag = 0;
  };
  struct RoleState {
    int limit = 0, max_shift = 0;
    std::vector<std::vector<int>> lags = {};              // by op: of what it waits for
    std::vector<std::vector<Dependent>> dependents = {};  // by op
    std::vector<Place> places = {};
  };
  struct Where {
    Id role = none, place = none, lane = none;
  };
  struct Done {
    double time = 0;
    std::uint64_t number = 0;
    Id role = none, place = none, op = none;
    int step = 0;
    double start = 0;
    Id to_rank = none;  // a put's receiver
    bool operator>(const Done& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };
  struct Arrived {
    std::vector<Where> who = {};
    std::vector<Id> ops = {};
  };
  struct Mailbox {
    std::deque<Id> messages = {};  // their senders
    std::deque<Where> takers = {};
  };

  const Role& role(Id r) const { return linked_.program.roles[r]; }
  bool arrival(Id r, Id lane) const { return role(r).lanes[lane].order == Order::arrival; }
  std::uint32_t need(Id r, Id o, int step) const {
    const auto& lags = roles_[r].lags[o];
    return static_cast<std::uint32_t>(
        std::count_if(lags.begin(), lags.end(), [step](int lag) { return lag <= step; }));
  }
  Instance& instance(Id r, Place& place, Id o, int step) {
    while (step - place.first_step >= static_cast<int>(place.steps.size())) {
      const int fresh = place.first_step + static_cast<int>(place.steps.size());
      StepState& state = place.steps.emplace_back();
      state.ops.resize(role(r).ops.size());
      state.remaining = state.ops.size();
      for (Id op = 0; op < state.ops.size(); ++op) state.ops[op].missing = need(r, op, fresh);
    }
    return place.steps[static_cast<std::size_t>(step - place.first_step)].ops[o];
  }

  void wake() {
    while (!woken_.empty()) {
      const Where where = woken_.front();
      woken_.pop_front();
      Place& place = roles_[where.role].places[where.place];
      LaneState& lane = place.lanes[where.lane];
      if (!lane.busy && pick(where, place, lane)) {
        lane.busy = true;
        begin(where, lane.current.op, lane.current.step);
      }
    }
  }

  bool pick(const Where& where, Place& place, LaneState& lane) {
    const RoleState& state = roles_[where.role];
    const bool stopped = finished_ == expected_ && role(where.role).free_running;
    if (arrival(where.role, where.lane)) {
      if (lane.ready.empty() || stopped) return false;
      std::pop_heap(lane.ready.begin(), lane.ready.end(), std::greater<>());
      lane.current = lane.ready.back();
      lane.ready.pop_back();
      return true;
    }
    const auto& ops = linked_.roles[where.role].lane_ops[where.lane];
    if (ops.empty()) return false;
    for (;; ++lane.next) {
      if (lane.next == ops.size()) lane.next = 0, ++lane.iteration;
      if (lane.next == 0 && (lane.iteration - state.max_shift >= state.limit || stopped))
        return false;
      const Id o = ops[lane.next];
      const int step = lane.iteration - role(where.role).ops[o].shift;
      if (step < 0 || step >= state.limit) continue;
      if (instance(where.role, place, o, step).missing > 0) return false;
      lane.current = {now_, step, o};
      ++lane.next;
      return true;
    }
  }

  void schedule(const Where& where, Id op, int step, double seconds, Id to_rank = none) {
    queue_.push({now_ + seconds, number_++, where.role, where.place, op, step, now_, to_rank});
  }

  void begin(const Where& where, Id o, int step) {
    const Op& op = role(where.role).ops[o];
    const Id rank = role(where.role).ranks[where.place];
    const double cost = costs_.seconds(where.role, o, where.place);
    std::visit(
        overloaded{[&](const Collective& work) { meet(where, o, step, work.channel); },
                   [&](const Send&) { meet(where, o, step, none); },
                   [&](const Recv&) { meet(where, o, step, none); },
                   [&](const Put& put) {
                     const auto& peers = role(put.peer).ranks;
                     Id to = peers[where.place % peers.size()];
                     double seconds = cost;
                     if (put.reply != none) {
                       const auto last = senders_[put.reply].find(rank);
                       if (last == senders_[put.reply].end())
                         throw ProgramError(
                             fmt::format("rank {} replies before any message came: {}", rank,
                                         to_text(linked_.program, role(where.role), o)));
                       to = last->second;
                       seconds = costs_.transfer_seconds(rank, to,
                                                         linked_.roles[where.role].ops[o].bytes);
                     }
                     schedule(where, o, step, seconds * disturber_.link_factor(rank, step, o), to);
                   },
                   [&](const Take& take) {
                     mailboxes_[{take.channel, rank}].takers.push_back(where);
                     deliver(take.channel, rank);
                   },
                   [&](const auto&) {
                     schedule(where, o, step, cost * disturber_.compute_factor(rank, step, o));
                   }},
        op.work);
  }

  void meet(const Where& where, Id o, int step, Id channel) {
    const Id event = linked_.event_of[where.role][o];
    const auto members = linked_.events[event];
    const bool pair = channel == none;
    Id group = where.place;
    std::size_t expected = 2;
    const Rendezvous* table = nullptr;
    if (!pair) {
      auto it = tables_.find(event);
      if (it == tables_.end()) {
        it = tables_.emplace(event, Table{rendezvous_of(linked_, channel, members), {}}).first;
        it->second.sizes.assign(it->second.meet.groups, 0);
        for (const auto& places : it->second.meet.group)
          for (Id g : places)
            if (g != none) ++it->second.sizes[g];
      }
      table = &it->second.meet;
      const auto m = static_cast<std::size_t>(
          std::find(members.begin(), members.end(), RoleOp{where.role, o}) - members.begin());
      group = table->group[m][where.place];
      expected = it->second.sizes[group];
    }
    Arrived& arrived = arrived_[{event, group, step}];
    arrived.who.push_back(where);
    arrived.ops.push_back(o);
    if (arrived.who.size() < expected) return;
    Id rank = none, op = none;  // the lowest rank's: the key of the factor
    for (std::size_t i = 0; i < expected; ++i) {
      const Id who = role(arrived.who[i].role).ranks[arrived.who[i].place];
      if (who < rank) rank = who, op = arrived.ops[i];
    }
    const double factor = disturber_.link_factor(rank, step, op);
    for (std::size_t i = 0; i < expected; ++i) {
      const Where& w = arrived.who[i];
      schedule(w, arrived.ops[i], step, costs_.seconds(w.role, arrived.ops[i], w.place) * factor);
    }
    arrived_.erase({event, group, step});
  }

  void deliver(Id channel, Id rank) {
    Mailbox& box = mailboxes_[{channel, rank}];
    if (box.messages.empty() || box.takers.empty()) return;
    senders_[channel][rank] = box.messages.front();
    const Where where = box.takers.front();
    box.messages.pop_front();
    box.takers.pop_front();
    const Ready& current = roles_[where.role].places[where.place].lanes[where.lane].current;
    schedule(where, current.op, current.step, 0);
  }

  void end(const Done& done) {
    const Role& who = role(done.role);
    const Op& op = who.ops[done.op];
    sink_.record(done.role, done.op, done.step, done.place, {&done.start, 1}, {&done.time, 1});
    ++out_.instances;
    if (!who.free_running) ++finished_;
    if (const auto* put = std::get_if<Put>(&op.work)) {
      mailboxes_[{put->channel, done.to_rank}].messages.push_back(who.ranks[done.place]);
      deliver(put->channel, done.to_rank);
    }
    RoleState& state = roles_[done.role];
    Place& place = state.places[done.place];
    place.lanes[op.lane].busy = false;
    for (const Dependent& d : state.dependents[done.op]) {
      if (d.lag >= state.limit - done.step) continue;
      const int step = done.step + d.lag;
      if (--instance(done.role, place, d.op, step).missing > 0) continue;
      const Id lane = who.ops[d.op].lane;
      if (arrival(done.role, lane)) {
        auto& ready = place.lanes[lane].ready;
        ready.push_back({now_, step, d.op});
        std::push_heap(ready.begin(), ready.end(), std::greater<>());
      }
      if (lane != op.lane) woken_.push_back({done.role, done.place, lane});
    }
    woken_.push_back({done.role, done.place, op.lane});
    --place.steps[static_cast<std::size_t>(done.step - place.first_step)].remaining;
    while (!place.steps.empty() && place.steps.front().remaining == 0)
      place.steps.pop_front(), ++place.first_step;
  }

  [[noreturn]] void stuck() const {
    std::string text =
        fmt::format("the program stops at {:.6f} s with {} of {} ops done; waiting:", now_,
                    finished_, expected_);
    int shown = 0;
    for (Id r = 0; r < roles_.size(); ++r)
      for (Id i = 0; i < roles_[r].places.size(); ++i)
        for (Id l = 0; l < roles_[r].places[i].lanes.size() && shown < 8; ++l) {
          const LaneState& lane = roles_[r].places[i].lanes[l];
          const auto& ops = linked_.roles[r].lane_ops[l];
          if (!lane.busy && (arrival(r, l) || lane.next >= ops.size())) continue;
          const Id o = lane.busy ? lane.current.op : ops[lane.next];
          text += fmt::format("\n  rank {} ({}): {}", role(r).ranks[i], role(r).name,
                              to_text(linked_.program, role(r), o));
          ++shown;
        }
    throw ProgramError(text);
  }

  struct Table {
    Rendezvous meet = {};
    std::vector<std::size_t> sizes = {};
  };
  const LinkedProgram& linked_;
  const Costs& costs_;
  const Disturber& disturber_;
  TraceSink& sink_;
  std::vector<RoleState> roles_ = {};
  std::priority_queue<Done, std::vector<Done>, std::greater<>> queue_ = {};
  std::deque<Where> woken_ = {};
  std::map<std::tuple<Id, Id, int>, Arrived> arrived_ = {};  // by event, group, step
  std::map<Id, Table> tables_ = {};                          // by event
  std::map<std::pair<Id, Id>, Mailbox> mailboxes_ = {};      // by channel, rank
  std::vector<std::map<Id, Id>> senders_ = {};               // [channel][rank]: last taken from
  double now_ = 0;
  std::uint64_t number_ = 0;
  std::int64_t expected_ = 0, finished_ = 0;
  DryRun out_ = {};
};

}  // namespace

DryRun dry_run_events(const LinkedProgram& linked, const Costs& costs, const Disturber& disturber,
                      int steps, TraceSink& sink) {
  return Events(linked, costs, disturber, steps, sink).run();
}

}  // namespace rehearse
