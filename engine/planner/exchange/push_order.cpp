#include "engine/planner/exchange/push_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/costs/costs.h"
#include "engine/link/link.h"
#include "engine/methods/lowering/exchange/partitions.h"
#include "engine/methods/strategy.h"
#include "engine/planner/exchange/fusion.h"

namespace rehearse::planner {
namespace {

/// The collectives that exchange one partition, in order.
struct Hop {
  Id lane = none;
  double seconds = 0;  // of the lane, for all workers of a machine
  bool pull = false;   // what follows stays inside the machine
};
using Way = std::vector<Hop>;

/// By partition. All collectives of a worker exchange partitions, equally many each.
std::vector<Way> ways_of(const plan::Plan& plan, const model::ModelSpec& model,
                         const cluster::Cluster& cluster, const costs::Profile* profile,
                         std::size_t partitions) {
  const link::OrderedProgram linked = link::order(methods::compile(plan, model));
  const costs::Costs costs(linked, model, cluster,
                           {.rank_to_device = plan.placement.rank_to_device,
                            .optimizer = plan.optimizer,
                            .profile = profile});
  const program::Role& worker = linked.program.roles[0];
  const auto locals = static_cast<Id>(methods::local_ranks(plan));
  std::vector<Hop> hops;
  for (Id o = 0; o < worker.ops.size(); ++o) {
    const auto* work = std::get_if<program::Collective>(&worker.ops[o].work);
    if (work == nullptr) continue;
    Hop hop{.lane = worker.ops[o].lane, .pull = work->move == program::Move::broadcast};
    // A server takes the parts of a machine's ranks one after the other.
    for (Id r = 0; r < (work->root == none ? 1 : locals); ++r) {
      double slowest = 0;
      for (Id place = 0; place < linked.program.roles[r].ranks.size(); ++place)
        slowest = std::max(slowest, costs.seconds(r, o, place));
      hop.seconds += slowest;
    }
    hops.push_back(hop);
  }
  std::vector<Way> out(partitions);
  const std::size_t each = hops.size() / partitions;
  for (std::size_t i = 0; i < hops.size(); ++i) out[i / each].push_back(hops[i]);
  return out;
}

/// The queue of one worker.
class Queue {
 public:
  Queue(const std::vector<methods::Partition>& partitions, std::vector<double> ready,
        std::vector<Way> ways, double credit)
      : partitions_(partitions), ready_(std::move(ready)), ways_(std::move(ways)), credit_(credit) {
    for (Id i = 0; i < partitions.size(); ++i) waiting_.insert({partitions[i].layer, i});
  }

  std::vector<Id> run() {
    std::vector<Id> order;
    double now = 0;
    while (!waiting_.empty()) {
      const auto next = std::ranges::find_if(
          waiting_, [&](const auto& one) { return ready_[one.second] <= now; });
      if (next == waiting_.end()) {
        now = soonest_ready();
      } else if (open_ > 0 && open_ + bytes(next->second) > credit_) {
        now = std::max(now, back_.begin()->first);
        take_back(now);
      } else {
        send(next->second, now);
        order.push_back(next->second);
        waiting_.erase(next);
      }
    }
    return order;
  }

 private:
  double bytes(Id i) const {
    return static_cast<double>(partitions_[i].end - partitions_[i].begin);
  }
  double soonest_ready() const {
    double soonest = ready_[waiting_.begin()->second];
    for (const auto& [layer, i] : waiting_) soonest = std::min(soonest, ready_[i]);
    return soonest;
  }
  void take_back(double now) {
    for (; !back_.empty() && back_.begin()->first <= now; back_.erase(back_.begin()))
      open_ -= back_.begin()->second;
  }
  void send(Id i, double now) {
    double end = now, back = now;
    for (const Hop& hop : ways_[i]) {
      double& free = free_[hop.lane];
      end = free = std::max(end, free) + hop.seconds;
      if (hop.pull) back = end;
    }
    open_ += bytes(i);
    back_.insert({back, bytes(i)});
  }

  const std::vector<methods::Partition>& partitions_;
  std::vector<double> ready_;
  std::vector<Way> ways_;
  double credit_;
  std::set<std::pair<Id, Id>> waiting_ = {};  // (layer, partition): the first has priority
  std::multimap<double, double> back_ = {};   // when a credit comes back, its size
  std::map<Id, double> free_ = {};            // when a lane is free
  double open_ = 0;
};

}  // namespace

std::vector<Id> push_order(const plan::Plan& plan, const model::ModelSpec& model,
                           const cluster::Cluster& cluster, const costs::Profile* profile) {
  plan::Plan plain = plan;
  plain.exchange.machines.push_order.clear();
  const std::vector<methods::Partition> partitions = methods::partitions_of(plain, model);
  const std::vector<double> ready = ready_after(plain, model, cluster, profile);
  std::vector<double> when;
  double largest = 0;
  for (const methods::Partition& p : partitions) {
    when.push_back(ready[p.layer]);
    largest = std::max(largest, static_cast<double>(p.end - p.begin));
  }
  return Queue(partitions, when, ways_of(plain, model, cluster, profile, partitions.size()),
               *plan.exchange.machines.credit * largest)
      .run();
}

job::Job with_push_order(job::Job job, const costs::Profile* profile) {
  if (job.plan_file.empty() && job.plan.exchange.machines.credit)
    job.plan.exchange.machines.push_order = push_order(job.plan, job.model, job.cluster, profile);
  return job;
}

}  // namespace rehearse::planner
