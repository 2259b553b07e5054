// The nodes of a run: which slots have a node, which nodes stand by or are being repaired, and
// which replicas a failure has struck.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "engine/goodput/incidents.h"
#include "engine/goodput/recovery_policy.h"
#include "engine/goodput/setting.h"

namespace rehearse::goodput {

class Fleet {
 public:
  /// `units`: a replica that was struck takes part again only when it has started anew.
  Fleet(const Setting& setting, bool units);

  /// Whether an incident strikes a node that takes part.
  bool uses(const Incident& incident) const;
  /// Marks what it strikes. `complete`: number of complete checkpoints. Returns whether nodes took
  /// parts of the newest checkpoint with them that no other node holds.
  bool strike(const Incident& incident, std::int64_t complete);
  /// The nodes of these slots come back at this time.
  void arrive(const std::vector<Id>& slots, Ticks at);
  Ticks next_return() const;
  /// Nodes that have come back stand by.
  void collect(Ticks now);
  /// Puts so many nodes that stand by into empty slots: each into its own where that is empty.
  void fill(int nodes);
  /// No replica is struck any more. Where nodes of parameter servers are missing, others have
  /// taken their roles.
  void all_start_anew();

  int spares() const { return static_cast<int>(pool_.size()); }
  /// Replicas whose nodes are all up.
  int standing_replicas() const;
  Situation situation(bool corrupt) const;

 private:
  /// The empty slots that so many nodes that stand by fill, in order: first their own.
  std::vector<Id> slots_for(int nodes) const;
  bool lacks_parts(std::int64_t complete);
  void replace_servers();

  const Setting& setting_;
  bool units_ = false;
  std::vector<char> up_ = {}, holds_ = {};  // by slot; holds_: its part of the newest checkpoint
  std::vector<std::vector<Id>> replicas_of_slot_;
  std::vector<int> empty_of_ = {};  // by replica: number of its slots without a node
  std::vector<char> struck_ = {};   // by replica
  std::vector<Id> pool_ = {};       // by node that stands by: the slot it came from, or none
  int empty_ = 0, alive_ranks_ = 0;
  std::int64_t seen_ = 0;  // complete checkpoints when holds_ was last true of all
  using Return = std::pair<Ticks, Id>;
  std::priority_queue<Return, std::vector<Return>, std::greater<>> returns_ = {};
};

}  // namespace rehearse::goodput
