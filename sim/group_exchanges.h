// Who meets whom in a program, on which devices and with what to exchange: every rendezvous and put
// resolved into flat tables before the run. Also finds the exchanges that nothing else of the
// program can disturb: those whose every link serves only exchanges that exclude each other because
// one lane of one rank takes part in all of them (a tensor-parallel group on its own NVLink). Their
// duration is known beforehand.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/link/link.h"
#include "sim/crowding.h"
#include "sim/exchange.h"
#include "sim/network.h"

namespace rehearse::sim {

struct GroupMembers {
  std::vector<Id> ranks = {}, devices = {};
};
struct GroupExchange {
  Id group = none;
  const Exchange* schedule = nullptr;
  bool alone = false;  // see above
  double seconds = 0;  // latencies and bytes when nothing contends
  double stretch = 1;  // ... times this: a profile measured another duration
  double extra = 0;    // ... plus this: measured where the cluster has no link
};

class GroupExchanges {
 public:
  struct Options {
    bool chunk = false;
    /// Costs are from a profile: stretch to them, but for the crowding of cores. Null: they are
    /// not.
    const Crowding* measured = nullptr;
  };
  /// Throws InputError when two devices that must talk have no path.
  GroupExchanges(const link::LinkedProgram& linked, const costs::Costs& costs,
                 const cluster::Cluster& cluster, SharedNetwork& network, Options options);

  /// Exchanges of an event are numbered from 0, each rank that takes part is in one of them; local
  /// work has none.
  std::size_t count(Id event) const {
    const Id cohort = events_[event].cohort;
    return cohort == none ? 0 : cohorts_[cohort].groups.size();
  }
  std::size_t local(Id event, Id rank) const {
    return cohorts_[events_[event].cohort].local_of_rank[rank];
  }
  const GroupExchange& exchange(Id event, std::size_t local) const {
    return group_exchanges_[events_[event].first + local];
  }
  /// The exchange of a put: from the place in its role to a place in the peer role.
  const GroupExchange& put(Id role, Id op, Id from_place, Id to_place) const;
  const GroupMembers& group(const GroupExchange& exchange) const { return groups_[exchange.group]; }
  /// By rank and lane, one number each.
  Id lane_id(Id role, Id place, Id lane) const;
  Id lanes() const { return lane_base_.back(); }

 private:
  /// Teams that meet in the same events.
  struct Cohort {
    std::vector<Id> groups = {};
    std::vector<Id> local_of_rank = {};
  };
  struct Event {
    Id cohort = none;
    std::size_t first = 0;  // into group_exchanges_
  };
  using ExchangeKey = std::tuple<program::Move, program::Algorithm, std::int64_t, program::DType,
                                 int, std::vector<Id>>;
  using CohortKey = std::tuple<Id, std::vector<Id>>;  // channel, roles (a pair: sender, receiver)
  /// cohort, lanes, move, algorithm, elements, wire, root
  using ClassKey =
      std::tuple<Id, std::vector<Id>, int, program::Algorithm, std::int64_t, program::DType, Id>;

  Id collective_cohort(Id channel, std::span<const link::RoleOp> event);
  Id pair_cohort(Id sender, Id receiver);
  Id add_group(std::vector<Id> ranks);
  void add_event(Id event);
  void add_put(Id role, Id op);
  const Exchange* schedule(const program::Collective& work, program::Algorithm algorithm,
                           std::int64_t elements, program::DType wire, const GroupMembers& group,
                           int root);
  const Exchange* single(double bytes);
  GroupExchange meet(Id group, const Exchange* schedule);
  void stretch(GroupExchange& exchange, double seconds) const;
  void stretch_event(Id event, std::size_t first);
  void occupy(const GroupExchange& exchange, std::vector<Id> lanes);
  void find_alone();
  bool serial(const GroupExchange& exchange) const;

  const link::LinkedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Cluster& cluster_;
  SharedNetwork& network_;
  Options options_;
  std::vector<GroupMembers> groups_ = {};
  std::vector<Cohort> cohorts_ = {};
  std::vector<Event> events_ = {};
  std::vector<GroupExchange> group_exchanges_ = {};
  std::map<std::pair<Id, Id>, std::size_t> puts_ = {};  // (role, op) -> first exchange
  std::vector<Id> lane_base_ = {};
  std::deque<Exchange> exchanges_ = {};
  std::map<ExchangeKey, const Exchange*> exchange_of_ = {};
  std::map<double, const Exchange*> single_of_ = {};
  std::map<CohortKey, Id> cohort_of_ = {};
  std::map<ClassKey, std::size_t> class_of_ = {};
  /// By link: lanes that take part in everything on it.
  struct Holders {
    bool used = false;
    std::vector<Id> lanes = {};
  };
  std::vector<Holders> holders_ = {};
};

}  // namespace rehearse::sim
