// Plays exchanges on the network, hop by hop: a hop starts when both its members are in its round,
// pays the latencies of its path by a timer and then flows. Where ranks share the cores of a host,
// every byte that a member sends or receives also costs it core time.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/group_exchanges.h"
#include "sim/network.h"

namespace rehearse::sim {

class Player {
 public:
  /// Handles of activities are passed to the network as `tag` | index.
  Player(SharedNetwork& network, const GroupExchanges& exchanges, SharedNetwork::Token tag)
      : network_(network), group_exchanges_(exchanges), tag_(tag) {}

  /// `cores`: by device; a byte costs `core_seconds_per_byte` of them at either end.
  void share_cores(std::vector<Id> cores, double core_seconds_per_byte);

  /// Begin at `date` (now or later). `factor` times as long. `owner` is returned when it ends. The
  /// exchange must have at least one round.
  void begin(const GroupExchange& exchange, double date, double factor, std::uint32_t owner);
  /// The activity of this index ended now: the owner of the exchange that ended with it.
  std::optional<std::uint32_t> ended(std::uint32_t index);
  /// Owner of the exchange that an unfinished activity belongs to.
  std::uint32_t owner_of(std::uint32_t index) const { return active_[hops_[index].active].owner; }

 private:
  struct Active {
    const GroupExchange* exchange = nullptr;
    double factor = 1;
    std::uint32_t owner = 0;
    std::size_t busy = 0;           // members under way, works under way
    std::vector<int> round = {};    // by member; the exchange's rounds() when through
    std::vector<int> pending = {};  // by member: hops of its round under way or to come
  };
  struct Activity {
    std::uint32_t active = 0;
    int from = 0, to = -1;  // to < 0: core work of a member
  };

  void enter(std::uint32_t active, int member, double date);
  void begin_hop(std::uint32_t active, const Hop& hop, double date);
  void begin_work(std::uint32_t active, int member, double date);
  std::uint32_t new_activity(Activity activity);

  SharedNetwork& network_;
  const GroupExchanges& group_exchanges_;
  SharedNetwork::Token tag_;
  std::vector<Id> cores_ = {};
  double core_seconds_per_byte_ = 0;
  std::vector<Active> active_ = {};
  std::vector<std::uint32_t> free_active_ = {}, free_hops_ = {};
  std::vector<Activity> hops_ = {};
  std::vector<Hop> scratch_ = {};
};

}  // namespace rehearse::sim
