// Plays exchanges on the network, hop by hop. A hop starts when both its members are in its round.
// It waits for the latencies of its path and then flows. Where ranks share the cores of a host,
// every byte that a member sends or receives also costs that member core time.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/group_exchanges.h"
#include "sim/network.h"

namespace rehearse::sim {

class Player {
 public:
  /// The network knows an activity of the player as `tag` | index of the activity.
  Player(SharedNetwork& network, const GroupExchanges& exchanges, SharedNetwork::Token tag)
      : network_(network), group_exchanges_(exchanges), tag_(tag) {}

  /// `cores`: the host of each device. A byte costs `core_seconds_per_byte` at the sender and as
  /// much at the receiver.
  void share_cores(std::vector<Id> cores, double core_seconds_per_byte);

  /// Begins an exchange at `date` (now or later). The exchange must have at least one round.
  /// `factor` multiplies its duration. ended() returns `owner` when the exchange ends.
  void begin(const GroupExchange& exchange, double date, double factor, std::uint32_t owner);
  /// To be called when the activity `index` has ended. Returns the owner of the exchange if the
  /// exchange ended with it.
  std::optional<std::uint32_t> ended(std::uint32_t index);
  /// The owner of the exchange that a running activity belongs to.
  std::uint32_t owner_of(std::uint32_t index) const { return active_[hops_[index].active].owner; }

 private:
  /// An exchange under way.
  struct Active {
    const GroupExchange* exchange = nullptr;
    double factor = 1;
    std::uint32_t owner = 0;
    std::size_t busy = 0;           // members that are not done + core work and adding under way
    std::vector<int> round = {};    // by member: its round; rounds() of the exchange: done
    std::vector<int> pending = {};  // by member: hops of its round that have not ended
  };
  /// A hop from one member to another; or core work of the member `from`, or the root's adding
  /// (then to < 0).
  struct Activity {
    std::uint32_t active = 0;  // index into active_
    int from = 0, to = -1;
  };

  void enter(std::uint32_t active, int member, double date);
  void begin_hop(std::uint32_t active, const Hop& hop, double date);
  void begin_work(std::uint32_t active, int member, double date);
  std::uint32_t new_activity(Activity activity);

  SharedNetwork& network_;
  const GroupExchanges& group_exchanges_;
  SharedNetwork::Token tag_;
  std::vector<Id> cores_ = {};  // by device
  double core_seconds_per_byte_ = 0;
  std::vector<Active> active_ = {};
  std::vector<std::uint32_t> free_active_ = {}, free_hops_ = {};
  std::vector<Activity> hops_ = {};
  std::vector<Hop> scratch_ = {};
};

}  // namespace rehearse::sim
