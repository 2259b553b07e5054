// Answers under way: puts whose sender goes on at once, because they lie in its outbox. Those to
// one rank leave one after the other, as over one connection.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "sim/owners.h"

namespace rehearse::sim {

struct Answer {
  const GroupExchange* exchange = nullptr;
  double factor = 1;  // jitter on its duration
  Owner owner = {};
};

class Answers {
 public:
  /// Whether the answer leaves now; otherwise it waits for the one before it.
  bool begins(const Answer& answer) {
    std::deque<Answer>& line = lines_[key(answer.owner)];
    line.push_back(answer);
    return line.size() == 1;
  }
  /// The answer has arrived at `now`. Returns the next one, which leaves then.
  std::optional<Answer> ended(const Owner& owner, double now) {
    std::deque<Answer>& line = lines_[key(owner)];
    line.pop_front();
    if (line.empty()) return std::nullopt;
    line.front().owner.start = now;
    return line.front();
  }

 private:
  using Key = std::tuple<Id, Id, Id>;  // channel, sender, receiver
  static Key key(const Owner& owner) { return {owner.channel, owner.from_rank, owner.to_rank}; }
  std::map<Key, std::deque<Answer>> lines_ = {};
};

}  // namespace rehearse::sim
