#include "sim/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <utility>

#include "engine/base/errors.h"
#include "engine/execution/dry_run/mailboxes.h"
#include "engine/link/readiness.h"
#include "engine/program/rounds.h"
#include "sim/answers.h"
#include "sim/crowding.h"
#include "sim/fault_player.h"
#include "sim/group_exchanges.h"
#include "sim/network.h"
#include "sim/owners.h"
#include "sim/player.h"

namespace rehearse::sim {
namespace {

/// The upper half of an activity's token says what the activity is; the lower half is an index.
enum Tag : SharedNetwork::Token {
  tag_hop = SharedNetwork::Token{0} << 32,       // a hop or core work; index: the player's
  tag_local = SharedNetwork::Token{1} << 32,     // a local op; index: its lane
  tag_exchange = SharedNetwork::Token{2} << 32,  // an exchange of known duration; index: its owner
  tag_begin = SharedNetwork::Token{3} << 32,     // an op whose rank stood still; index: its lane
  tag_faults = SharedNetwork::Token{4} << 32,    // the fault player's
};

class Executor {
 public:
  Executor(const link::OrderedProgram& linked, const costs::Costs& costs,
           const cluster::Cluster& cluster, const cluster::Disturber& disturber, int steps,
           execution::TraceSink& sink, const SimOptions& options)
      : linked_(linked),
        costs_(costs),
        disturber_(disturber),
        sink_(sink),
        options_(options),
        faults_(options.faults),
        network_(cluster, options.slow,
                 {.bypass = options.bypass,
                  .limits = faults_ != nullptr && loses_packets(faults_->trace())}),
        crowding_(cluster, options.profile, costs.rank_to_device()),
        group_exchanges_(linked, costs, cluster, network_, options.fidelity == Fidelity::chunk),
        player_(network_, group_exchanges_, tag_hop),
        readiness_(linked, steps),
        rounds_(linked.role_of.size()) {
    for (const program::Role& role : linked.program.roles) {
      follow_clock_ |= role.free_running;
      for (const program::Lane& lane : role.lanes)
        follow_clock_ |= lane.order == program::Order::arrival;
    }
    follow_clock_ |= linked.mailboxes || faults_ != nullptr;
    if (faults_ != nullptr) {
      links_change_ = changes_links(faults_->trace());
      fault_player_ =
          std::make_unique<FaultPlayer>(*faults_, cluster, costs.rank_to_device(), network_,
                                        [this](double date) { network_.wake(date, tag_faults); });
      fault_player_->begin_run();
    }
    for (Id event = 0; event < linked.events.size(); ++event) {
      waiting_base_.push_back(waiting_.size());
      waiting_.resize(waiting_.size() + group_exchanges_.count(event));
    }
    prepare_cores(cluster);
    local_seconds_.resize(faults_ != nullptr ? readiness_.lanes().size() : 0);
  }

  Simulated run() {
    for (Id lane = 0; lane < readiness_.lanes().size(); ++lane) enqueue(lane);
    drain();
    network_.run([this](SharedNetwork::Token token) {
      ended(token);
      drain();
    });
    if (!stopped_) check_all_ended();
    result_.transfers = network_.transfers();
    result_.flows = network_.flows();
    return result_;
  }

 private:
  /// The members of one exchange that have arrived.
  struct Waiting {
    double since = 0;           // when the last of them was ready
    std::uint32_t arrived = 0;  // how many have arrived
  };

  /// Gives each device a host of SimGrid to compute on, unless local work bypasses SimGrid.
  void prepare_cores(const cluster::Cluster& cluster) {
    const auto devices = static_cast<Id>(cluster.devices().size());
    if (cluster.shared_cores() > 0) {
      std::vector<Id> of_node(static_cast<std::size_t>(cluster.nodes()));
      for (Id& cores : of_node) cores = network_.add_cores(cluster.shared_cores());
      for (Id d = 0; d < devices; ++d) cores_.push_back(of_node[cluster.devices()[d].node]);
      if (options_.profile != nullptr)
        player_.share_cores(cores_, options_.profile->cpu_seconds_per_byte);
    } else if (!options_.bypass) {
      // At least a core for every lane: lanes of one device do not contend.
      constexpr int cores_of_a_device = 1024;
      for (Id d = 0; d < devices; ++d) cores_.push_back(network_.add_cores(cores_of_a_device));
    }
  }

  void enqueue(Id lane) {
    if (std::exchange(readiness_.lanes()[lane].queued, true)) return;
    queue_.push_back(lane);
  }
  void drain() {
    while (!queue_.empty() && !stopped_) {
      const Id lane = queue_.front();
      queue_.pop_front();
      readiness_.lanes()[lane].queued = false;
      advance(lane);
    }
  }
  /// Starts ops of a lane until the lane is busy or its next op is not ready.
  void advance(Id id) {
    link::RankLane& lane = readiness_.lanes()[id];
    while (!lane.busy && !stopped_) {
      link::Ready ready;
      if (!readiness_.next(lane, ready)) return;
      lane.busy = true;
      lane.current = ready;
      start(id);
    }
  }

  void start(Id id) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const program::Op& op = linked_.program.roles[lane.role].ops[lane.current.op];
    if (fault_player_ &&
        fault_player_->must_wait(rank_of(lane), op, readiness_.lanes()[id].current, tag_begin | id))
      return;
    if (!op.when.due(lane.current.step)) return start_local(id);
    std::visit(program::overloaded{[&](const program::Compute&) { start_local(id); },
                                   [&](const program::Kernel&) { start_local(id); },
                                   [&](const program::Update&) { start_local(id); },
                                   [&](const program::Collective&) { arrive(id); },
                                   [&](const program::Send&) { arrive(id); },
                                   [&](const program::Recv&) { arrive(id); },
                                   [&](const program::Put& put) { start_put(id, put); },
                                   [&](const program::Take& take) { start_take(id, take); },
                                   [&](const program::Copy&) { start_local(id); },
                                   [&](const program::Save&) { start_local(id); },
                                   [&](const program::Pause&) { start_local(id); },
                                   [&](const program::Issue&) { start_local(id); }},
               op.work);
  }
  Id rank_of(const link::RankLane& lane) const {
    return linked_.program.roles[lane.role].ranks[lane.place];
  }

  void start_local(Id id) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const Id rank = rank_of(lane);
    const program::Op& op = linked_.program.roles[lane.role].ops[lane.current.op];
    const program::Round& round = linked_.program.roles[lane.role].round;
    const bool works = op.when.due(lane.current.step) &&
                       (round.steps == 0 || rounds_[rank].works(round, op, lane.current.step, [&] {
                         return lane.current.since;
                       }));
    const bool on_cores =
        !cores_.empty() && works && !std::holds_alternative<program::Pause>(op.work);
    const double seconds =
        works ? costs_.seconds(lane.role, lane.current.op, lane.place) *
                    disturber_.compute_factor(rank, lane.current.step, lane.current.op)
              : 0;
    const double since = lane.current.since;
    const Id device = costs_.rank_to_device()[rank];
    if (faults_ != nullptr) local_seconds_[id] = on_cores ? -1 : seconds;
    if (on_cores)
      network_.work(since, cores_[device], seconds / crowding_.of_work(device), crowding_.threads(),
                    tag_local | id);
    else if (follow_clock_ || (!cores_.empty() && seconds > 0))
      network_.wake(since + seconds, tag_local | id);
    else
      finish(id, since, since + seconds);
  }
  /// Whether local work that was to end now goes on, because its rank stood still or was slow.
  bool local_goes_on(Id id, double now) {
    if (faults_ == nullptr) return false;
    const link::RankLane& lane = readiness_.lanes()[id];
    const program::Work& work = linked_.program.roles[lane.role].ops[lane.current.op].work;
    const double since = lane.current.since;
    if (local_seconds_[id] < 0) local_seconds_[id] = now - since;
    const double end = faults_->end_of(rank_of(lane), work, since, local_seconds_[id]);
    return fault_player_->goes_on(end, now, tag_local | id);
  }
  bool exchange_goes_on(std::uint32_t index, double now) {
    if (faults_ == nullptr) return false;
    const Owner& owner = owners_[index];
    const GroupMembers& group = group_exchanges_.group(*owner.exchange);
    const double end = faults_->end_of(group.ranks, owner.start, owner.seconds);
    return fault_player_->goes_on(end, now, tag_exchange | index);
  }

  /// A rank arrives at a rendezvous: a collective, a send or a receive. The last rank to arrive
  /// starts the exchange.
  void arrive(Id id) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const Id event = linked_.event_of[lane.role][lane.current.op];
    const std::size_t local = group_exchanges_.local(event, rank_of(lane));
    Waiting& waiting = waiting_[waiting_base_[event] + local];
    waiting.since = std::max(waiting.since, lane.current.since);
    const GroupExchange& exchange = group_exchanges_.exchange(event, local);
    const GroupMembers& group = group_exchanges_.group(exchange);
    if (++waiting.arrived < group.ranks.size()) return;
    const double since = waiting.since;
    waiting = {};
    const Id lowest = *std::min_element(group.ranks.begin(), group.ranks.end());
    const double factor =
        disturber_.link_factor(lowest, lane.current.step, op_of(event, linked_.role_of[lowest]));
    meet(exchange, since, factor,
         {.event = event, .local = static_cast<std::uint32_t>(local), .start = since});
  }
  /// The op with which a role takes part in an event.
  Id op_of(Id event, Id role) const {
    for (const link::RoleOp who : linked_.events[event])
      if (who.role == role) return who.op;
    return none;
  }

  /// Starts an exchange whose members are ready at `since`. `factor`: jitter on its duration.
  void meet(const GroupExchange& exchange, double since, double factor, Owner owner) {
    const bool known = exchange.schedule->rounds() == 0 ||
                       (exchange.uncontended && options_.bypass && !links_change_ &&
                        options_.fidelity == Fidelity::fluid && cores_.empty());
    const double end = since + factor * (exchange.seconds * exchange.stretch + exchange.extra);
    if (known) ++result_.bypassed;
    if (known && !follow_clock_) return end_exchange(owner, end);
    owner.exchange = &exchange;
    owner.seconds = end - since;
    const std::uint32_t index = owners_.keep(owner);
    if (known)
      network_.wake(end, tag_exchange | index);
    else
      player_.begin(exchange, since, factor, index);
  }

  /// The exchange ended: finishes the op of every member.
  void end_exchange(const Owner& owner, double end) {
    if (owner.event == none) return end_put(owner, end);
    const GroupMembers& group =
        group_exchanges_.group(group_exchanges_.exchange(owner.event, owner.local));
    for (const Id rank : group.ranks) {
      const Id role = linked_.role_of[rank];
      const Id lane = linked_.program.roles[role].ops[op_of(owner.event, role)].lane;
      finish(readiness_.lane_id(role, linked_.place_of[rank], lane), owner.start, end);
    }
  }

  void start_put(Id id, const program::Put& put) {
    const link::RankLane& lane = readiness_.lanes()[id];
    const Id rank = rank_of(lane);
    const std::vector<Id>& peers = linked_.program.roles[put.peer].ranks;
    Id to = peers[lane.place % peers.size()];
    if (put.reply != none) to = mailboxes_.last_sender(put.reply, rank);
    if (to == none)
      throw ProgramError(
          fmt::format("rank {} replies before any message came: {}", rank,
                      to_text(linked_.program, linked_.program.roles[lane.role], lane.current.op)));
    const GroupExchange& exchange =
        group_exchanges_.put(lane.role, lane.current.op, lane.place, linked_.place_of[to]);
    const double factor = disturber_.link_factor(rank, lane.current.step, lane.current.op);
    const double since = lane.current.since;
    Owner owner{.start = since, .channel = put.channel, .from_rank = rank, .to_rank = to};
    if (put.reply == none) return owner.lane = id, meet(exchange, since, factor, owner);
    // Whoever answers goes on at once: the answer lies in its outbox.
    owner.posted = since;
    if (answers_.begins({&exchange, factor, owner})) meet(exchange, since, factor, owner);
    finish(id, since, since);
  }
  void end_put(const Owner& owner, double end) {
    const bool answer = owner.lane == none;
    mailboxes_.arrives(owner.channel, owner.to_rank, owner.from_rank, answer ? owner.posted : end);
    deliver(owner.channel, owner.to_rank, end);
    if (!answer) return finish(owner.lane, owner.start, end);
    if (const auto next = answers_.ended(owner, end))
      meet(*next->exchange, end, next->factor, next->owner);
  }
  void start_take(Id id, const program::Take& take) {
    const Id rank = rank_of(readiness_.lanes()[id]);
    mailboxes_.waits(take.channel, rank, id);
    deliver(take.channel, rank, readiness_.lanes()[id].current.since);
  }
  void deliver(Id channel, Id rank, double now) {
    const auto got = mailboxes_.deliver(channel, rank);
    if (!got) return;
    finish(got->lane, std::max(readiness_.lanes()[got->lane].current.since, got->posted), now);
  }

  void ended(SharedNetwork::Token token) {
    const auto index = static_cast<std::uint32_t>(token);
    const double now = network_.now();
    // When all other roles have finished their steps, ops of free-running roles that are still
    // under way do not end.
    if (stopped_ || now > over_at_) return;
    switch (token & ~SharedNetwork::Token{~std::uint32_t{0}}) {
      case tag_local:
        if (local_goes_on(index, now)) return;
        return finish(index, readiness_.lanes()[index].current.since, now);
      case tag_exchange:
        if (exchange_goes_on(index, now)) return;
        return end_owner(index, now);
      case tag_begin:
        return start(index);
      case tag_faults:
        fault_player_->reach(now);
        if (faults_->stopped()) stop();
        return;
      default:
        if (const auto owner = player_.ended(index)) end_owner(*owner, now);
    }
  }
  /// The run has noticed that it cannot go on. What is under way in SimGrid ends unheard.
  void stop() {
    stopped_ = true;
    faults_->note_waiting(readiness_);
    fault_player_->release_all();
  }
  void end_owner(std::uint32_t index, double end) { end_exchange(owners_.take(index), end); }

  void finish(Id id, double start, double end) {
    if (stopped_) return;
    link::RankLane& lane = readiness_.lanes()[id];
    const link::Ready current = lane.current;
    lane.busy = false;
    lane.free_at = end;
    sink_.record(lane.role, current.op, current.step, lane.place, {&start, 1}, {&end, 1});
    ++result_.instances;
    result_.seconds = std::max(result_.seconds, end);
    stopped_ = sink_.may_stop();
    woken_.clear();
    readiness_.finish(lane, current.op, current.step, end, woken_);
    for (const Id other : woken_) enqueue(other);
    enqueue(id);
    if (follow_clock_ && readiness_.finished() == readiness_.instances_to_run()) {
      readiness_.stop_free_running();
      over_at_ = std::min(over_at_, end);
    }
  }

  /// Throws BackendError when ops are left that did not end.
  void check_all_ended() const {
    if (readiness_.finished() == readiness_.instances_to_run()) return;
    if (faults_ != nullptr && faults_->stop_stuck(network_.now()))
      return faults_->note_waiting(readiness_);
    throw BackendError(fmt::format(
        "the simulation ended with {} of {} ops done; {} activities of SimGrid began and never "
        "ended. Where it stopped:{}",
        readiness_.finished(), readiness_.instances_to_run(), network_.unfinished().size(),
        readiness_.stuck(8)));
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Disturber& disturber_;
  execution::TraceSink& sink_;
  const SimOptions options_;
  execution::FaultReplay* faults_;
  SharedNetwork network_;
  const Crowding crowding_;
  GroupExchanges group_exchanges_;
  Player player_;
  link::Readiness readiness_;
  std::unique_ptr<FaultPlayer> fault_player_ = nullptr;
  bool links_change_ = false;               // by faults: no exchange has a known duration
  std::vector<double> local_seconds_ = {};  // by lane: of its local op; -1: the cores decide
  bool follow_clock_ = false;               // the order of ops depends on times (see executor.h)
  bool stopped_ = false;  // the sink needs no more; what is under way in SimGrid ends unheard
  double over_at_ = std::numeric_limits<double>::infinity();  // when the last counted op ended
  std::vector<Id> cores_ = {};                  // by device; empty: local work bypasses SimGrid
  std::vector<std::size_t> waiting_base_ = {};  // by event: its first entry in waiting_
  std::vector<Waiting> waiting_ = {};
  Owners owners_;
  execution::Mailboxes mailboxes_ = {};
  Answers answers_ = {};
  std::vector<program::RoundClock> rounds_;  // by rank
  std::deque<Id> queue_ = {};                // lanes that may be able to go on
  std::vector<Id> woken_ = {};
  Simulated result_ = {};
};

}  // namespace

Simulated simulate(const link::OrderedProgram& linked, const costs::Costs& costs,
                   const cluster::Cluster& cluster, const cluster::Disturber& disturber, int steps,
                   execution::TraceSink& sink, const SimOptions& options) {
  return Executor(linked, costs, cluster, disturber, steps, sink, options).run();
}

}  // namespace rehearse::sim
