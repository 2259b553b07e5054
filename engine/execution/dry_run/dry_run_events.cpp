// The dry run of programs whose order depends on timing: mailboxes, lanes by arrival, free-running
// roles. An event queue processes op ends in time order; equal times go in the order of scheduling.
// An op begins when its lane is free, its waits have ended and, in a rendezvous, the same holds for
// its partners.
//
// On a lane by arrival an op waits only for its own previous instance, not for other ops of the
// lane. Of several ready ops, the one that became ready first runs first (ties: the earlier step,
// then the earlier op). A Take occupies its lane until a message arrives; a Put that answers does
// not occupy its lane. Free-running roles begin no iteration after all other roles have finished;
// ops that still run then are not in the trace.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/dry_run/mailboxes.h"
#include "engine/execution/trace/chrome_trace.h"
#include "engine/link/readiness.h"
#include "engine/link/rendezvous.h"
#include "engine/program/rounds.h"

namespace rehearse::execution {
namespace {

class Events {
 public:
  Events(const link::OrderedProgram& linked, const costs::Costs& costs,
         const cluster::Disturber& disturber, int steps, TraceSink& sink, FaultReplay* faults)
      : linked_(linked),
        costs_(costs),
        disturber_(disturber),
        sink_(sink),
        faults_(faults),
        meet_(linked),
        readiness_(linked, steps) {
    rounds_.resize(static_cast<std::size_t>(linked.program.world_size));
  }

  DryRun run() {
    for (Id lane = 0; lane < readiness_.lanes().size(); ++lane) woken_.push_back(lane);
    wake();
    while (!sink_.may_stop() && !stopped() && (!queue_.empty() || faults_due()) &&
           (!all_served() || queue_.top().time <= now_)) {
      if (faults_due()) {
        now_ = faults_->next();
        faults_->reach(now_);
        continue;
      }
      const Done done = queue_.top();
      queue_.pop();
      now_ = done.time;
      if (!goes_on(done)) end(done);
      wake();
    }
    if (!all_served() && !sink_.may_stop() && !stopped() &&
        (faults_ == nullptr || !faults_->stop_stuck(now_)))
      stuck();
    if (stopped()) faults_->note_waiting(readiness_);
    out_.seconds = now_;
    return out_;
  }

 private:
  struct Done {
    double time = 0;
    std::uint64_t number = 0;
    Id lane = none, op = none;
    int step = 0;
    double start = 0, seconds = 0;
    Id to_rank = none;    // a put's receiver
    bool answer = false;  // an answer arrives, which was put at `posted`
    double posted = 0;
    bool begins = false;  // the op begins only now, because its rank stood still
    bool operator>(const Done& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };
  struct Arrived {
    std::vector<Id> lanes = {}, ops = {};
  };
  const program::Role& role(Id r) const { return linked_.program.roles[r]; }
  bool all_served() const { return readiness_.finished() == readiness_.instances_to_run(); }

  void wake() {
    if (all_served()) readiness_.stop_free_running();
    while (!woken_.empty()) {
      const Id id = woken_.front();
      woken_.pop_front();
      link::RankLane& lane = readiness_.lanes()[id];
      link::Ready ready;
      if (lane.busy || !readiness_.next(lane, ready)) continue;
      lane.busy = true;
      lane.current = ready;
      begin(id, ready.op, ready.step);
    }
  }

  bool stopped() const { return faults_ != nullptr && faults_->stopped(); }
  /// Whether the faults come next.
  bool faults_due() const {
    if (faults_ == nullptr || all_served() || faults_->next() == FaultReplay::never) return false;
    return queue_.empty() || faults_->next() <= queue_.top().time;
  }
  /// Whether the op may not begin now, because its rank stands still. It begins later, or never.
  bool must_wait(Id id, Id o, int step) {
    if (faults_ == nullptr) return false;
    const link::RankLane& lane = readiness_.lanes()[id];
    const program::Op& op = role(lane.role).ops[o];
    const double free = faults_->begins(role(lane.role).ranks[lane.place], op, step, now_);
    if (free <= now_ || !communicates(op.work)) return false;
    if (free < FaultReplay::never)
      queue_.push(
          {.time = free, .number = number_++, .lane = id, .op = o, .step = step, .begins = true});
    return true;
  }
  /// Whether an op whose end was due goes on, because a rank stood still or was slow. It ends
  /// later, or never.
  bool goes_on(const Done& done) {
    if (faults_ == nullptr) return false;
    const link::RankLane& lane = readiness_.lanes()[done.lane];
    if (done.begins) {
      begin(done.lane, done.op, done.step);
      return true;
    }
    const Id rank = role(lane.role).ranks[lane.place];
    const program::Work& work = role(lane.role).ops[done.op].work;
    double end = done.time;
    if (!communicates(work)) {
      end = faults_->end_of(rank, work, done.start, done.seconds);
    } else if (faults_->any_stands() && !std::holds_alternative<program::Take>(work) &&
               (done.answer || !answers(work))) {
      std::vector<Id> ranks = meet_.of(work, rank);
      if (done.to_rank != none) ranks = {rank, done.to_rank};
      end = faults_->end_of(ranks, done.start, done.seconds);
    }
    if (end <= done.time) return false;
    Done later = done;
    later.time = end;
    if (end < FaultReplay::never) queue_.push(later);
    return true;
  }

  bool works(const link::RankLane& lane, const program::Op& op, int step) {
    if (!op.when.due(step)) return false;
    const program::Round& round = role(lane.role).round;
    return round.steps == 0 ||
           rounds_[role(lane.role).ranks[lane.place]].works(round, op, step, [&] { return now_; });
  }

  void schedule(Id lane, Id op, int step, double seconds, Id to_rank = none) {
    queue_.push({now_ + seconds, number_++, lane, op, step, now_, seconds, to_rank});
  }

  void begin(Id id, Id o, int step) {
    if (must_wait(id, o, step)) return;
    const link::RankLane& lane = readiness_.lanes()[id];
    const program::Op& op = role(lane.role).ops[o];
    const Id rank = role(lane.role).ranks[lane.place];
    if (!works(lane, op, step)) return schedule(id, o, step, 0);
    const double cost = costs_.seconds(lane.role, o, lane.place);
    std::visit(program::overloaded{
                   [&](const program::Collective& work) { meet(id, o, step, work.channel); },
                   [&](const program::Send&) { meet(id, o, step, none); },
                   [&](const program::Recv&) { meet(id, o, step, none); },
                   [&](const program::Put& put) {
                     const auto& peers = role(put.peer).ranks;
                     Id to = peers[lane.place % peers.size()];
                     double seconds = cost;
                     if (put.reply != none) {
                       to = mailboxes_.last_sender(put.reply, rank);
                       if (to == none)
                         throw ProgramError(
                             fmt::format("rank {} replies before any message came: {}", rank,
                                         to_text(linked_.program, role(lane.role), o)));
                       seconds =
                           costs_.transfer_seconds(rank, to, linked_.roles[lane.role].ops[o].bytes);
                     }
                     seconds *= disturber_.link_factor(rank, step, o);
                     if (put.reply == none) return schedule(id, o, step, seconds, to);
                     answer(id, o, step, seconds, to);
                     schedule(id, o, step, 0, to);
                   },
                   [&](const program::Take& take) {
                     mailboxes_.waits(take.channel, rank, id);
                     deliver(take.channel, rank);
                   },
                   [&](const auto&) {
                     schedule(id, o, step, cost * disturber_.compute_factor(rank, step, o));
                   }},
               op.work);
  }

  static bool answers(const program::Work& work) {
    const auto* put = std::get_if<program::Put>(&work);
    return put != nullptr && put->reply != none;
  }
  /// Whoever answers goes on at once: the answer lies in its outbox. Answers wait for each other on
  /// the links that all of them take, and those to one rank arrive in order.
  void answer(Id id, Id o, int step, double seconds, Id to) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const Id rank = role(lane.role).ranks[lane.place];
    const double start = std::max(now_, free_[rank]);
    free_[rank] = start + costs_.leaving_seconds(lane.role, o, lane.place);
    double& last = last_answer_[{rank, to}];
    last = std::max(last, start + seconds);
    queue_.push({.time = last,
                 .number = number_++,
                 .lane = id,
                 .op = o,
                 .step = step,
                 .start = start,
                 .seconds = last - start,
                 .to_rank = to,
                 .answer = true,
                 .posted = now_});
  }

  void meet(Id id, Id o, int step, Id channel) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const Id event = linked_.event_of[lane.role][o];
    const auto members = linked_.events[event];
    const bool pair = channel == none;
    Id group = lane.place;
    std::size_t group_size = 2;
    const link::Rendezvous* table = nullptr;
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
          std::find(members.begin(), members.end(), link::RoleOp{lane.role, o}) - members.begin());
      group = table->group[m][lane.place];
      group_size = it->second.sizes[group];
    }
    Arrived& arrived = arrived_[{event, group, step}];
    arrived.lanes.push_back(id);
    arrived.ops.push_back(o);
    if (arrived.lanes.size() < group_size) return;
    Id rank = none, op = none;  // lowest rank and its op: the key of the link factor
    for (std::size_t i = 0; i < group_size; ++i) {
      const link::RankLane& one = readiness_.lanes()[arrived.lanes[i]];
      const Id who = role(one.role).ranks[one.place];
      if (who < rank) rank = who, op = arrived.ops[i];
    }
    const double factor = disturber_.link_factor(rank, step, op);
    for (std::size_t i = 0; i < group_size; ++i) {
      const link::RankLane& one = readiness_.lanes()[arrived.lanes[i]];
      schedule(arrived.lanes[i], arrived.ops[i], step,
               costs_.seconds(one.role, arrived.ops[i], one.place) * factor);
    }
    arrived_.erase({event, group, step});
  }

  void deliver(Id channel, Id rank) {
    const auto got = mailboxes_.deliver(channel, rank);
    if (!got) return;
    const link::Ready& current = readiness_.lanes()[got->lane].current;
    queue_.push({.time = now_,
                 .number = number_++,
                 .lane = got->lane,
                 .op = current.op,
                 .step = current.step,
                 .start = std::max(current.since, got->posted)});
  }

  void end(const Done& done) {
    link::RankLane& lane = readiness_.lanes()[done.lane];
    const program::Role& who = role(lane.role);
    const auto* put = std::get_if<program::Put>(&who.ops[done.op].work);
    const auto arrives = [&](double posted) {
      mailboxes_.arrives(put->channel, done.to_rank, who.ranks[lane.place], posted);
      deliver(put->channel, done.to_rank);
    };
    if (done.answer) return arrives(done.posted);
    sink_.record(lane.role, done.op, done.step, lane.place, {&done.start, 1}, {&done.time, 1});
    ++out_.instances;
    if (put != nullptr && put->reply == none) arrives(done.time);
    lane.busy = false;
    lane.free_at = now_;
    freed_.clear();
    readiness_.finish(lane, done.op, done.step, now_, freed_);
    std::erase(freed_, done.lane);
    woken_.insert(woken_.end(), freed_.begin(), freed_.end());
    woken_.push_back(done.lane);
  }

  [[noreturn]] void stuck() const {
    throw ProgramError(
        fmt::format("the program stops at {:.6f} s with {} of {} ops done; waiting:{}", now_,
                    readiness_.finished(), readiness_.instances_to_run(), readiness_.stuck(8)));
  }

  struct Table {
    link::Rendezvous meet = {};
    std::vector<std::size_t> sizes = {};
  };
  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Disturber& disturber_;
  TraceSink& sink_;
  FaultReplay* faults_;
  link::RanksThatMeet meet_;
  link::Readiness readiness_;
  std::priority_queue<Done, std::vector<Done>, std::greater<>> queue_ = {};
  std::deque<Id> woken_ = {};  // lanes that may begin an op
  std::vector<Id> freed_ = {};
  std::map<std::tuple<Id, Id, int>, Arrived> arrived_ = {};  // by event, group, step
  std::map<Id, Table> tables_ = {};                          // by event
  Mailboxes mailboxes_ = {};
  std::map<Id, double> free_ = {};                        // by rank: when its next answer can leave
  std::map<std::pair<Id, Id>, double> last_answer_ = {};  // by sender, receiver: when it arrives
  std::vector<program::RoundClock> rounds_ = {};          // by rank
  double now_ = 0;
  std::uint64_t number_ = 0;
  DryRun out_ = {};
};

}  // namespace

DryRun dry_run_events(const link::OrderedProgram& linked, const costs::Costs& costs,
                      const cluster::Disturber& disturber, int steps, TraceSink& sink,
                      FaultReplay* faults) {
  return Events(linked, costs, disturber, steps, sink, faults).run();
}

}  // namespace rehearse::execution
