// The mailboxes of a simulation: one for each channel and rank, with the messages that wait for a
// Take and the Takes that wait for a message.
#pragma once
#include <deque>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::sim {

class Mailboxes {
 public:
  Mailboxes(std::size_t channels, std::size_t ranks)
      : ranks_(ranks), boxes_(channels * ranks), last_sender_(channels * ranks, none) {}

  /// A message of `sender` is there.
  void arrives(Id channel, Id rank, Id sender) { box(channel, rank).senders.push_back(sender); }
  /// A Take of a lane waits.
  void waits(Id channel, Id rank, Id lane) { box(channel, rank).takers.push_back(lane); }
  /// Gives the oldest message to the oldest Take and returns the lane of that; none: there is no
  /// message or no Take.
  Id deliver(Id channel, Id rank) {
    Box& mine = box(channel, rank);
    if (mine.senders.empty() || mine.takers.empty()) return none;
    last_sender_[channel * ranks_ + rank] = mine.senders.front();
    const Id lane = mine.takers.front();
    mine.senders.pop_front();
    mine.takers.pop_front();
    return lane;
  }
  /// Who sent the message that the rank took last, to whom a reply goes; none: nobody.
  Id last_sender(Id channel, Id rank) const { return last_sender_[channel * ranks_ + rank]; }

 private:
  struct Box {
    std::deque<Id> senders = {};  // in order of arrival
    std::deque<Id> takers = {};   // lanes
  };
  Box& box(Id channel, Id rank) { return boxes_[channel * ranks_ + rank]; }

  std::size_t ranks_ = 0;
  std::vector<Box> boxes_;
  std::vector<Id> last_sender_;
};

}  // namespace rehearse::sim
