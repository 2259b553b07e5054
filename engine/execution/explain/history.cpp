#include "engine/execution/explain/history.h"

#include <algorithm>

namespace rehearse::execution {

History::History(const link::OrderedProgram& linked, const Fold* fold)
    : linked_(linked), fold_(fold) {
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    RoleState& state = roles_.emplace_back();
    state.places = fold ? fold->representative[r].size() : role.ranks.size();
    state.ranks.assign(state.places, fold ? 0 : 1);
    if (fold)
      for (const Id place : fold->class_of[r]) ++state.ranks[place];
    state.lane_ends.assign(role.lanes.size() * state.places, no_slot);
  }
}

Id History::rank_of(Id role, Id place) const {
  return linked_.program.roles[role].ranks[fold_ ? fold_->representative[role][place] : place];
}

bool History::ran(const Instance& at) const {
  return at.step >= 0 && at.step < roles_[at.role].steps && slot(at).end >= 0;
}

void History::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                     std::span<const double> ends) {
  RoleState& state = roles_[role];
  const program::Role& who = linked_.program.roles[role];
  if (step >= state.steps) {
    state.steps = step + 1;
    state.slots.resize(static_cast<std::size_t>(state.steps) * who.ops.size() * state.places);
  }
  const std::size_t lane = who.ops[op].lane * state.places;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Instance at{role, op, step, first_place + static_cast<Id>(i)};
    const std::size_t slot = index(at);
    std::uint32_t& latest = state.lane_ends[lane + at.place];
    state.slots[slot] = {starts[i], ends[i], latest};
    latest = static_cast<std::uint32_t>(slot);
    if (linked_.mailboxes) record_message(at, starts[i], ends[i]);
    if (who.free_running) continue;
    if (static_cast<std::size_t>(step) >= last_.size())
      last_.resize(static_cast<std::size_t>(step) + 1);
    Instance& last = last_[static_cast<std::size_t>(step)];
    if (last.role == none || ends[i] > end(last)) last = at;
  }
}

/// A Take that waited for a message starts when the Put of that message ends. The receiver of a
/// reply is not in the trace, so of equal replies the first one counts; it may arrive after others.
void History::record_message(const Instance& at, double start, double end) {
  const program::Role& role = linked_.program.roles[at.role];
  const program::Work& work = role.ops[at.op].work;
  if (const auto* put = std::get_if<program::Put>(&work)) {
    std::vector<Instance>& latest = latest_puts_[put->channel];
    if (put->reply == none && !latest.empty() && this->end(latest.front()) != end) latest.clear();
    if (put->reply != none && latest.size() == linked_.role_of.size()) latest.erase(latest.begin());
    latest.push_back(at);
  } else if (const auto* take = std::get_if<program::Take>(&work)) {
    for (const Instance& from : latest_puts_[take->channel]) {
      const program::Role& sender = linked_.program.roles[from.role];
      const auto& sent = std::get<program::Put>(sender.ops[from.op].work);
      const auto& peers = linked_.program.roles[sent.peer].ranks;
      const bool here =
          sent.reply != none || peers[from.place % peers.size()] == role.ranks[at.place];
      if (!here || this->end(from) != start) continue;
      message_[{at.role, index(at)}] = from;
      break;
    }
  }
}

void History::own_causes(const Instance& at, std::vector<Instance>& out) const {
  const RoleState& role = roles_[at.role];
  const auto ops = static_cast<std::uint32_t>(linked_.program.roles[at.role].ops.size());
  if (const std::uint32_t previous = slot(at).previous_on_lane; previous != no_slot) {
    const auto places = static_cast<std::uint32_t>(role.places);
    const std::uint32_t op = previous / places;
    out.push_back({at.role, op % ops, static_cast<int>(op / ops), previous % places});
  }
  for (const link::Wait& wait : linked_.roles[at.role].waits.of(at.op))
    if (const Instance on{at.role, wait.op, at.step - wait.lag, at.place}; ran(on))
      out.push_back(on);
}

const link::Rendezvous& History::rendezvous(std::span<const link::RoleOp> event, Id channel) {
  const auto [it, fresh] = rendezvous_.try_emplace({channel, event[0].role});
  if (fresh) {
    it->second = rendezvous_of(linked_, channel, event);
    if (fold_) it->second = folded(it->second, event, *fold_);
  }
  return it->second;
}

void History::causes(const Instance& at, std::vector<Instance>& out) {
  own_causes(at, out);
  const auto event = linked_.events[linked_.event_of[at.role][at.op]];
  const program::Work& work = linked_.program.roles[at.role].ops[at.op].work;
  const auto partner = [&](const Instance& with) {
    if (with != at && ran(with)) own_causes(with, out);
  };
  if (const auto* collective = std::get_if<program::Collective>(&work)) {
    const link::Rendezvous& meet = rendezvous(event, collective->channel);
    const auto own = std::find(event.begin(), event.end(), link::RoleOp{at.role, at.op});
    const Id group = meet.group[static_cast<std::size_t>(own - event.begin())][at.place];
    for (std::size_t m = 0; m < event.size(); ++m)
      for (Id place = 0; place < meet.group[m].size(); ++place)
        if (meet.group[m][place] == group) partner({event[m].role, event[m].op, at.step, place});
  } else {
    for (const link::RoleOp& member : event) partner({member.role, member.op, at.step, at.place});
  }
  if (const auto message = message_.find({at.role, index(at)}); message != message_.end())
    out.push_back(message->second);
}

}  // namespace rehearse::execution
