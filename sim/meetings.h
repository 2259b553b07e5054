// Who meets whom in a program, on which devices and with what to exchange: every rendezvous and put
// resolved into flat tables before the run. Also finds the meetings that nothing else of the
// program can disturb: those whose every link serves only meetings that exclude each other because
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

struct Team {
  std::vector<Id> ranks = {}, devices = {};
};
struct Meeting {
  Id team = none;
  const Exchange* exchange = nullptr;
  bool alone = false;  // see above
  double seconds = 0;  // latencies and bytes when nothing contends
  double stretch = 1;  // ... times this: a profile measured another duration
  double extra = 0;    // ... plus this: measured where the cluster has no link
};

class Meetings {
 public:
  struct Options {
    bool chunk = false;
    /// Costs are from a profile: stretch to them, but for the crowding of cores. Null: they are
    /// not.
    const Crowding* measured = nullptr;
  };
  /// Throws InputError when two devices that must talk have no path.
  Meetings(const link::LinkedProgram& linked, const costs::Costs& costs,
           const cluster::Cluster& cluster, SharedNetwork& network, Options options);

  /// Meetings of an event are numbered from 0, each rank that takes part is in one of them; local
  /// work has none.
  std::size_t count(Id event) const {
    const Id cohort = events_[event].cohort;
    return cohort == none ? 0 : cohorts_[cohort].teams.size();
  }
  std::size_t local(Id event, Id rank) const {
    return cohorts_[events_[event].cohort].local_of_rank[rank];
  }
  const Meeting& meeting(Id event, std::size_t local) const {
    return meetings_[events_[event].first + local];
  }
  /// The meeting of a put: from the place in its role to a place in the peer role.
  const Meeting& put(Id role, Id op, Id from_place, Id to_place) const;
  const Team& team(const Meeting& meeting) const { return teams_[meeting.team]; }
  /// By rank and lane, one number each.
  Id lane_id(Id role, Id place, Id lane) const;
  Id lanes() const { return lane_base_.back(); }

 private:
  /// Teams that meet in the same events.
  struct Cohort {
    std::vector<Id> teams = {};
    std::vector<Id> local_of_rank = {};
  };
  struct Event {
    Id cohort = none;
    std::size_t first = 0;  // into meetings_
  };
  using ExchangeKey = std::tuple<program::Move, program::Algorithm, std::int64_t, program::DType,
                                 int, std::vector<Id>>;
  using CohortKey = std::tuple<Id, std::vector<Id>>;  // channel, roles (a pair: sender, receiver)
  /// cohort, lanes, move, algorithm, elements, wire, root
  using ClassKey =
      std::tuple<Id, std::vector<Id>, int, program::Algorithm, std::int64_t, program::DType, Id>;

  Id collective_cohort(Id channel, std::span<const link::RoleOp> event);
  Id pair_cohort(Id sender, Id receiver);
  Id add_team(std::vector<Id> ranks);
  void add_event(Id event);
  void add_put(Id role, Id op);
  const Exchange* exchange(const program::Collective& work, program::Algorithm algorithm,
                           std::int64_t elements, program::DType wire, const Team& team, int root);
  const Exchange* single(double bytes);
  Meeting meet(Id team, const Exchange* exchange);
  void stretch(Meeting& meeting, double seconds) const;
  void stretch_event(Id event, std::size_t first);
  void occupy(const Meeting& meeting, std::vector<Id> lanes);
  void find_alone();
  bool serial(const Meeting& meeting) const;

  const link::LinkedProgram& linked_;
  const costs::Costs& costs_;
  const cluster::Cluster& cluster_;
  SharedNetwork& network_;
  Options options_;
  std::vector<Team> teams_ = {};
  std::vector<Cohort> cohorts_ = {};
  std::vector<Event> events_ = {};
  std::vector<Meeting> meetings_ = {};
  std::map<std::pair<Id, Id>, std::size_t> puts_ = {};  // (role, op) -> first meeting
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
