// Which ranks exchange what with each other, and on which devices: every rendezvous and put of a
// program, resolved into flat tables before the run.
//
// An event of the linked program may be several exchanges, one for each group. Mesh dp 2 x tp 2
// with tp innermost, an all-reduce over dp:
//
//   event e   exchange 0: ranks 0, 2     exchange 1: ranks 1, 3     so local(e, 3) == 1
//
// This file also finds the exchanges that nothing else in the program can slow down. A lane runs
// one op at a time, so two exchanges cannot overlap when one lane of one rank takes part in both.
// An exchange is alone when this holds for all exchanges on each of its links. Its duration is then
// known beforehand:
//
//   link             exchanges that use it     lanes that take part in all of them
//   NVLink 0 -> 1    tp all-reduces of 0, 1    the tp lanes of ranks 0, 1     alone
//   NIC of node 0    dp sums of 0, 2 and 1, 3  none                           simulated
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/costs/network/rings.h"
#include "engine/link/link.h"
#include "sim/exchange.h"
#include "sim/network.h"

namespace rehearse::sim {

/// The members of a group, and the device of each.
struct GroupMembers {
  std::vector<Id> ranks = {}, devices = {};
};
struct GroupExchange {
  Id group = none;  // its members
  const Exchange* schedule = nullptr;
  bool uncontended = false;  // nothing else can use its links at the same time
  double seconds = 0;        // duration when nothing contends, from latencies, bandwidths, adding
  double adding = 0;         // beside the hops: the root of a star adds what it receives
  double stretch = 1;        // factor on `seconds` that gives what the profile has of it alone
  double extra = 0;          // before the first hop: the library's launch or its latencies; or all
                             // seconds of the profile where the cluster has no link
};

class GroupExchanges {
 public:
  /// `chunk`: every transfer of every round; false: fluid (exchange.h). Throws InputError when two
  /// devices that must talk have no path.
  GroupExchanges(const link::OrderedProgram& linked, const costs::Costs& costs,
                 const cluster::Cluster& cluster, SharedNetwork& network, bool chunk);

  /// The number of exchanges of an event; 0 for local work and puts. They are numbered from 0, and
  /// each rank that takes part is in one of them.
  std::size_t count(Id event) const {
    const Id cohort = events_[event].cohort;
    return cohort == none ? 0 : cohorts_[cohort].groups.size();
  }
  /// The number of the exchange that the rank takes part in.
  std::size_t local(Id event, Id rank) const {
    return cohorts_[events_[event].cohort].local_of_rank[rank];
  }
  const GroupExchange& exchange(Id event, std::size_t local) const {
    return group_exchanges_[events_[event].first + local];
  }
  /// The exchange of a put, from a place in its role to a place in the peer role.
  const GroupExchange& put(Id role, Id op, Id from_place, Id to_place) const;
  /// The route of a hop of the exchange; none: between a device and itself.
  Id route(const GroupExchange& exchange, const Hop& hop) const;
  const GroupMembers& group(const GroupExchange& exchange) const { return groups_[exchange.group]; }
  /// One number for each lane of each rank, from 0 to lanes() - 1.
  Id lane_id(Id role, Id place, Id lane) const;
  Id lanes() const { return lane_base_.back(); }

 private:
  /// Groups that take part in the same events.
  struct GroupSet {
    std::vector<Id> groups = {};
    std::vector<Id> local_of_rank = {};  // index into groups; none: the rank takes no part
  };
  struct Event {
    Id cohort = none;       // none: local work or a put
    std::size_t first = 0;  // into group_exchanges_
  };
  using ExchangeKey = std::tuple<program::Move, program::Algorithm, std::int64_t, program::DType,
                                 int, std::vector<Id>, costs::Wiring>;
  /// Channel and roles of a collective; none, sender and receiver of a pair.
  using CohortKey = std::tuple<Id, std::vector<Id>>;
  /// Events with equal keys share their exchanges: cohort, lanes, move, algorithm, elements (bytes
  /// of a pair), wire, root, distance.
  using ClassKey = std::tuple<Id, std::vector<Id>, int, program::Algorithm, std::int64_t,
                              program::DType, Id, int>;

  Id collective_cohort(Id channel, std::span<const link::RoleOp> event);
  Id pair_cohort(Id sender, Id receiver);
  Id add_group(std::vector<Id> ranks);
  void add_event(Id event);
  void add_put(Id role, Id op);
  const Exchange* schedule(const program::Collective& work, program::Algorithm algorithm,
                           std::int64_t elements, program::DType wire, const GroupMembers& group,
                           int root);
  GroupExchange collective_exchange(const program::Collective& work, program::Algorithm algorithm,
                                    const link::LinkedOp& facts, Id group);
  const Exchange* single(double bytes);
  GroupExchange make_exchange(Id group, const Exchange* schedule);
  GroupExchange transfer(Id group, std::int64_t bytes);
  void occupy(const GroupExchange& exchange, std::vector<Id> lanes);
  void find_uncontended();
  bool serial(const GroupExchange& exchange) const;

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Cluster& cluster_;
  SharedNetwork& network_;
  bool chunk_;
  std::vector<GroupMembers> groups_ = {};
  std::vector<GroupSet> cohorts_ = {};
  std::vector<Event> events_ = {};
  std::vector<GroupExchange> group_exchanges_ = {};
  std::map<std::pair<Id, Id>, std::size_t> puts_ = {};  // (role, op) -> its first exchange
  std::vector<Id> lane_base_ = {};                      // by role: its first lane id
  std::deque<Exchange> exchanges_ = {};
  std::map<ExchangeKey, const Exchange*> exchange_of_ = {};
  std::map<double, const Exchange*> single_of_ = {};
  std::map<CohortKey, Id> cohort_of_ = {};
  std::map<ClassKey, std::size_t> class_of_ = {};
  /// The lanes that take part in every exchange on one link.
  struct Holders {
    bool used = false;
    std::vector<Id> lanes = {};
  };
  std::vector<Holders> holders_ = {};  // by link
};

}  // namespace rehearse::sim
