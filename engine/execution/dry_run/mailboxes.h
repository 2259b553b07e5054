// The mailboxes of a dry run or a simulation: one for each channel and rank, with the messages that
// wait for a Take and the Takes that wait for a message.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/id.h"

namespace rehearse::execution {

class Mailboxes {
 public:
  /// A message of `sender` is there, under way since `posted`.
  void arrives(Id channel, Id rank, Id sender, double posted) {
    boxes_[{channel, rank}].messages.push_back({sender, posted});
  }
  /// A Take of a lane waits.
  void waits(Id channel, Id rank, Id lane) { boxes_[{channel, rank}].takers.push_back(lane); }
  struct Delivery {
    Id lane = none;     // of the Take
    double posted = 0;  // since when its message was under way
  };
  /// Gives the oldest message to the oldest Take. Nothing: there is no message or no Take.
  std::optional<Delivery> deliver(Id channel, Id rank) {
    Box& mine = boxes_[{channel, rank}];
    if (mine.messages.empty() || mine.takers.empty()) return std::nullopt;
    mine.last_sender = mine.messages.front().sender;
    const Delivery out{mine.takers.front(), mine.messages.front().posted};
    mine.messages.pop_front();
    mine.takers.pop_front();
    return out;
  }
  /// Who sent the message that the rank took last, to whom a reply goes; none: nobody.
  Id last_sender(Id channel, Id rank) const {
    const auto box = boxes_.find({channel, rank});
    return box == boxes_.end() ? none : box->second.last_sender;
  }

 private:
  struct Message {
    Id sender = none;
    double posted = 0;
  };
  struct Box {
    std::deque<Message> messages = {};  // in order of arrival
    std::deque<Id> takers = {};         // lanes
    Id last_sender = none;
  };
  std::map<std::pair<Id, Id>, Box> boxes_ = {};  // by channel, rank
};

}  // namespace rehearse::execution
