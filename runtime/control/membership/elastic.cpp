#include "runtime/control/membership/elastic.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "engine/base/errors.h"
#include "runtime/control/launch/local_ranks.h"
#include "runtime/control/membership/rendezvous.h"

namespace rehearse::runtime {
namespace {

constexpr Seconds last_call = Seconds(3);  // for more nodes, once there are enough
constexpr Seconds look_every = Seconds(0.1);

class Elastic {
 public:
  Elastic(const RankWork& work, const LaunchOptions& options)
      : options_(options),
        how_(*options.elastic),
        ranks_(work, options),
        nodes_(how_.folder, options.nproc, ranks_.address(), ranks_.port(), how_.silence),
        last_(nodes_.self().start) {
    if (!secret_of()) ranks_.use(nodes_.secret());
  }

  Launched run() {
    try {
      while (true) {
        const auto start = await_start();
        if (!start) return stopped();
        if (start->over) {
          ranks_.end_all();
          return {.status = start->status, .ranks = start->ranks};
        }
        begin(*start);
        while (!ranks_.settled()) turn(*start);
        const Launched ended = ranks_.outcome();
        if (ended.interrupted) {
          ranks_.end_all();
          return ended;
        }
        nodes_.say(start->number,
                   ended.status == 0 ? NodeState::done
                   : ended.drained   ? NodeState::drained
                                     : NodeState::failed,
                   ended.status, ended.died, ended.hung);
      }
    } catch (...) {
      ranks_.kill_all(SIGKILL);
      throw;
    }
  }

 private:
  Launched stopped() {
    Launched ended = ranks_.outcome();
    ranks_.end_all();
    if (ended.status == 0) ended.status = 128 + ranks_.signal();  // no rank was running
    return ended;
  }

  void tick() {
    ranks_.turn(look_every);
    nodes_.tick();
  }

  /// The next start that has ranks for this node, or the end. Nothing: this launcher was asked to
  /// stop.
  std::optional<RendezvousStart> await_start() {
    waiting_since_ = Clock::now();
    enough_since_.reset();
    while (ranks_.signal() == 0) {
      tick();
      const RendezvousStart newest = nodes_.newest();
      if (newest.number > last_) {
        last_ = newest.number;
        if (newest.over || ranks_here(newest) > 0) return newest;
        nodes_.say(newest.number, NodeState::idle);
      }
      if (nodes_.leads()) decide(newest);
    }
    return std::nullopt;
  }

  static int ranks_of(const RendezvousStart& start, const std::string& node) {
    for (const auto& [name, ranks] : start.ranks_of_node)
      if (name == node) return ranks;
    return 0;
  }
  int ranks_here(const RendezvousStart& start) const { return ranks_of(start, nodes_.self().name); }

  void begin(const RendezvousStart& start) {
    NextStart next{.ranks = start.ranks,
                   .resume_from = start.resume_from,
                   .set = start.set,
                   .first_start = start.first,
                   .here = ranks_here(start),
                   .address = start.address,
                   .port = start.port,
                   .number = start.number};
    for (const auto& [name, ranks] : start.ranks_of_node) {
      if (name == nodes_.self().name) break;
      next.first += ranks;
    }
    ranks_.go_on(next);
    nodes_.say(start.number, NodeState::running);
  }

  void turn(const RendezvousStart& start) {
    tick();
    for (const RendezvousNode& n : nodes_.alive()) {
      if (n.start != start.number || n.state != NodeState::failed) continue;
      ranks_.fail();
      for (const int rank : n.stuck) ranks_.fail_because_of(rank);
      for (const int rank : n.died) ranks_.lose(rank);
    }
    if (!ranks_.draining() && nodes_.drain_requested(start.number)) ranks_.drain();
    // Rank 0 is on the node that leads.
    if (!nodes_.leads() || !ranks_.began() || ranks_.draining()) return;
    const bool others = std::ranges::any_of(
        nodes_.alive(), [&](const RendezvousNode& n) { return !in(start, n.name); });
    const bool room = static_cast<int>(start.ranks_of_node.size()) < how_.most;
    if (others && room) nodes_.request_drain(start.number);
  }

  static bool in(const RendezvousStart& start, const std::string& name) {
    return std::ranges::any_of(start.ranks_of_node,
                               [&](const auto& node) { return node.first == name; });
  }

  /// Of the launcher that leads: writes the next start when all that are alive have ended the last.
  void decide(const RendezvousStart& last) {
    std::vector<RendezvousNode> alive = nodes_.alive();
    std::vector<RendezvousNode> were;
    for (const RendezvousNode& n : alive)
      if (ranks_of(last, n.name) > 0) were.push_back(n);
    for (const RendezvousNode& n : were)
      if (n.start < last.number || n.state == NodeState::running) return;
    const bool first = were.empty() || last.over;
    const auto worst = std::ranges::max_element(were, {}, &RendezvousNode::status);
    const bool all_done = std::ranges::all_of(
        were, [](const RendezvousNode& n) { return n.state == NodeState::done; });
    if (!first && (all_done || worst->status > 1)) return end(last, worst->status);
    if (static_cast<int>(alive.size()) > how_.most)
      alive.resize(static_cast<std::size_t>(how_.most));
    const auto there = static_cast<int>(alive.size());
    if (there < how_.least) {
      enough_since_.reset();
      if (seconds_since(waiting_since_) < how_.patience.value) return;
      RankOutput::say(fmt::format("rehearse: --nnodes {}:{}: {} node{} there after {}\n",
                                  how_.least, how_.most, there, there == 1 ? " is" : "s are",
                                  to_text(how_.patience)));
      return end(last, 1);
    }
    if (!enough_since_) enough_since_ = Clock::now();
    if (first && there < how_.most && seconds_since(*enough_since_) < last_call.value) return;
    publish_next(last, alive, were, first);
  }

  void publish_next(const RendezvousStart& last, const std::vector<RendezvousNode>& nodes,
                    const std::vector<RendezvousNode>& were, bool first) {
    Launched ended{.status = 1, .ranks = first ? 0 : last.ranks};
    ended.recoveries = first ? 0 : last.recoveries;
    for (const RendezvousNode& n : nodes) ended.standing_by += n.nproc;
    ended.drained = !first && std::ranges::all_of(were, [](const RendezvousNode& n) {
      return n.state == NodeState::drained;
    });
    if (!first) ended.died = died_in(last, were);
    for (const RendezvousNode& n : were) {
      if (n.start != last.number) continue;
      for (const int rank : n.stuck)
        if (std::ranges::count(ended.hung, rank) == 0) ended.hung.push_back(rank);
    }
    if (!ended.died.empty()) ended.drained = false;
    const auto next = options_.recover(ended);
    if (!next) return end(last, 1);
    RendezvousStart start{.number = last.number + 1,
                          .recoveries = ended.recoveries + (first || ended.drained ? 0 : 1),
                          .ranks = next->ranks,
                          .first = first,
                          .address = nodes.front().address,
                          .port = nodes.front().port,
                          .resume_from = next->resume_from,
                          .set = next->set};
    int left = next->ranks;
    for (const RendezvousNode& n : nodes) {
      const int here = std::min(left, n.nproc);
      start.ranks_of_node.emplace_back(n.name, here);  // 0: the method cannot use it
      left -= here;
    }
    nodes_.publish(start);
  }

  /// The ranks that a signal ended, or that were on a node whose launcher has died.
  static std::vector<int> died_in(const RendezvousStart& last,
                                  const std::vector<RendezvousNode>& were) {
    std::set<int> died;
    int rank = 0;
    for (const auto& [name, ranks] : last.ranks_of_node) {
      const auto node = std::ranges::find(were, name, &RendezvousNode::name);
      if (node == were.end())
        for (int i = 0; i < ranks; ++i) died.insert(rank + i);
      else
        died.insert(node->died.begin(), node->died.end());
      rank += ranks;
    }
    return {died.begin(), died.end()};
  }

  void end(const RendezvousStart& last, int status) const {
    nodes_.publish(
        {.number = last.number + 1, .ranks = last.ranks, .over = true, .status = status});
  }

  const LaunchOptions& options_;
  const ElasticOptions& how_;
  LocalRanks ranks_;
  Rendezvous nodes_;
  int last_ = 0;  // the newest start that this launcher has seen
  Deadline waiting_since_ = Clock::now();
  std::optional<Deadline> enough_since_ = {};
};

}  // namespace

Launched launch_elastic(const RankWork& work, const LaunchOptions& options) {
  return Elastic(work, options).run();
}

}  // namespace rehearse::runtime
