#include "engine/goodput/fleet.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rehearse::goodput {

Fleet::Fleet(const Setting& setting, bool units)
    : setting_(setting),
      units_(units),
      up_(setting.ranks_of_slot.size(), 1),
      holds_(setting.ranks_of_slot.size(), 1),
      replicas_of_slot_(setting.replicas_of_slot),
      empty_of_(static_cast<std::size_t>(setting.replicas)),
      struck_(static_cast<std::size_t>(setting.replicas)),
      pool_(static_cast<std::size_t>(setting.spares), none) {
  for (const int ranks : setting.ranks_of_slot) alive_ranks_ += ranks;
}

bool Fleet::uses(const Incident& i) const {
  return std::any_of(i.slots.begin(), i.slots.end(), [&](Id slot) {
    if (up_[slot] == 0) return false;
    if (!units_) return true;
    const std::vector<Id>& replicas = replicas_of_slot_[slot];
    return std::any_of(replicas.begin(), replicas.end(),
                       [&](Id r) { return struck_[r] == 0 && empty_of_[r] == 0; });
  });
}

bool Fleet::strike(const Incident& i, std::int64_t complete) {
  if (complete != seen_) {
    holds_ = up_;
    seen_ = complete;
  }
  bool lost_parts = false;
  for (const Id slot : i.slots) {
    for (const Id r : replicas_of_slot_[slot])
      if (up_[slot] != 0) struck_[r] = 1;
    if (i.strike != Strike::loses) continue;
    if (up_[slot] == 0) {
      // The node is not in its slot; it may stand by.
      const auto it = std::find(pool_.begin(), pool_.end(), slot);
      if (it == pool_.end()) continue;
      pool_.erase(it);
    } else {
      up_[slot] = 0;
      ++empty_;
      alive_ranks_ -= setting_.ranks_of_slot[slot];
      for (const Id r : replicas_of_slot_[slot]) ++empty_of_[r];
      lost_parts = lost_parts || holds_[slot] != 0;
    }
    holds_[slot] = 0;
    if (i.lasts > 0) returns_.emplace(i.at + i.lasts, slot);
  }
  return lost_parts && setting_.checkpoint.group > 0 && lacks_parts(complete);
}

/// Whether some group of nodes holds nothing of the newest checkpoint any more.
bool Fleet::lacks_parts(std::int64_t complete) {
  const auto group = static_cast<std::size_t>(setting_.checkpoint.group);
  if (complete == 0) return true;
  for (std::size_t first = 0; first < holds_.size(); first += group) {
    const auto begin = holds_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end =
        holds_.begin() + static_cast<std::ptrdiff_t>(std::min(first + group, holds_.size()));
    if (std::find(begin, end, 1) == end) return true;
  }
  return false;
}

void Fleet::arrive(const std::vector<Id>& slots, Ticks at) {
  for (const Id slot : slots) returns_.emplace(at, slot);
}

Ticks Fleet::next_return() const {
  return returns_.empty() ? std::numeric_limits<Ticks>::max() : returns_.top().first;
}

void Fleet::collect(Ticks now) {
  while (!returns_.empty() && returns_.top().first <= now) {
    pool_.push_back(returns_.top().second);
    returns_.pop();
  }
}

std::vector<Id> Fleet::slots_for(int nodes) const {
  const std::size_t most = static_cast<std::size_t>(std::min({nodes, spares(), empty_}));
  std::vector<Id> slots;
  const auto add = [&](Id slot) {
    if (slots.size() < most && up_[slot] == 0 && std::ranges::find(slots, slot) == slots.end())
      slots.push_back(slot);
  };
  for (std::size_t n = pool_.size(); n-- > 0;)
    if (pool_[n] != none) add(pool_[n]);
  for (Id slot = 0; slot < up_.size() && slots.size() < most; ++slot) add(slot);
  return slots;
}

void Fleet::fill(int nodes) {
  for (const Id slot : slots_for(nodes)) {
    const auto own = std::find(pool_.rbegin(), pool_.rend(), slot);
    pool_.erase(own == pool_.rend() ? pool_.end() - 1 : own.base() - 1);
    up_[slot] = 1;
    --empty_;
    alive_ranks_ += setting_.ranks_of_slot[slot];
    for (const Id r : replicas_of_slot_[slot]) {
      --empty_of_[r];
      struck_[r] = 1;  // until its processes have started
    }
  }
}

void Fleet::all_start_anew() {
  std::fill(struck_.begin(), struck_.end(), 0);
  if (setting_.servers > 0 && empty_ > 0) replace_servers();
}

/// A run that goes on without the node of a server has made servers of its last workers.
void Fleet::replace_servers() {
  const auto all = static_cast<std::size_t>(setting_.replicas);
  for (Id slot = 0; slot < up_.size(); ++slot) {
    if (up_[slot] != 0 || replicas_of_slot_[slot].size() < all) continue;
    for (std::size_t other = up_.size(); other-- > 0;)
      if (up_[other] != 0 && replicas_of_slot_[other].size() < all) {
        std::swap(replicas_of_slot_[slot], replicas_of_slot_[other]);
        break;
      }
  }
  std::fill(empty_of_.begin(), empty_of_.end(), 0);
  for (Id slot = 0; slot < up_.size(); ++slot)
    if (up_[slot] == 0)
      for (const Id r : replicas_of_slot_[slot]) ++empty_of_[r];
}

int Fleet::standing_replicas() const {
  return static_cast<int>(std::count(empty_of_.begin(), empty_of_.end(), 0));
}

Situation Fleet::situation(bool corrupt) const {
  Situation s{.setting = setting_,
              .alive_ranks = alive_ranks_,
              .empty_slots = empty_,
              .spares = spares(),
              .corrupt = corrupt};
  for (std::size_t r = 0; r < struck_.size(); ++r)
    s.whole_replicas += struck_[r] == 0 && empty_of_[r] == 0 ? 1 : 0;
  s.standing_replicas = standing_replicas();
  if (s.spares > 0 && s.empty_slots > 0) {
    std::vector<int> empty_of = empty_of_;
    for (const Id slot : slots_for(s.spares))
      for (const Id r : replicas_of_slot_[slot]) --empty_of[r];
    s.standing_replicas = static_cast<int>(std::ranges::count(empty_of, 0));
  }
  return s;
}

}  // namespace rehearse::goodput
