// Exchanges and puts under way. Each has a number, by which their end is told.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/group_exchanges.h"

namespace rehearse::sim {

/// An exchange or put under way.
struct Owner {
  Id event = none;          // none: a put
  std::uint32_t local = 0;  // number of the exchange within its event
  double start = 0;
  // Of a put.
  Id channel = none, from_rank = none, to_rank = none;
  Id lane = none;     // of the sender, until the message has arrived; none: it does not wait
  double posted = 0;  // when an answer was put; others arrive when they are posted
  const GroupExchange* exchange = nullptr;
  double seconds = 0;  // if they are known
};

/// Numbers are used again, so they stay as few as there are exchanges under way at a time.
class Owners {
 public:
  /// Returns its number.
  std::uint32_t keep(const Owner& owner) {
    if (free_.empty()) {
      owners_.push_back(owner);
      return static_cast<std::uint32_t>(owners_.size() - 1);
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    owners_[index] = owner;
    return index;
  }
  const Owner& operator[](std::uint32_t index) const { return owners_[index]; }
  /// Returns it and frees its number.
  Owner take(std::uint32_t index) {
    free_.push_back(index);
    return owners_[index];
  }

 private:
  std::vector<Owner> owners_ = {};
  std::vector<std::uint32_t> free_ = {};
};

}  // namespace rehearse::sim
