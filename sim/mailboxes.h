// The mailboxes of a simulation: one for each channel and rank, with the messages that wait for a
// Take and the Takes that wait for a message.
#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::sim {

class Mailboxes {
 public:
  Mailboxes(std::size_t channels, std::size_t ranks)
      : ranks_(ranks), boxes_(channels * ranks), last_sender_(channels * ranks, none) {}

  /// A message of `sender` is there, under way since `posted`.
  void arrives(Id channel, Id rank, Id sender, double posted) {
    box(channel, rank).messages.push_back({sender, posted});
  }
  /// A Take of a lane waits.
  void waits(Id channel, Id rank, Id lane) { box(channel, rank).takers.push_back(lane); }
  struct Delivery {
    Id lane = none;     // of the Take
    double posted = 0;  // since when its message was under way
  };
  /// Gives the oldest message to the oldest Take. Nothing: there is no message or no Take.
  std::optional<Delivery> deliver(Id channel, Id rank) {
    Box& mine = box(channel, rank);
    if (mine.messages.empty() || mine.takers.empty()) return std::nullopt;
    last_sender_[channel * ranks_ + rank] = mine.messages.front().sender;
    const Delivery out{mine.takers.front(), mine.messages.front().posted};
    mine.messages.pop_front();
    mine.takers.pop_front();
    return out;
  }
  /// Who sent the message that the rank took last, to whom a reply goes; none: nobody.
  Id last_sender(Id channel, Id rank) const { return last_sender_[channel * ranks_ + rank]; }

 private:
  struct Message {
    Id sender = none;
    double posted = 0;
  };
  struct Box {
    std::deque<Message> messages = {};  // in order of arrival
    std::deque<Id> takers = {};         // lanes
  };
  Box& box(Id channel, Id rank) { return boxes_[channel * ranks_ + rank]; }

  std::size_t ranks_ = 0;
  std::vector<Box> boxes_;
  std::vector<Id> last_sender_;
};

}  // namespace rehearse::sim
