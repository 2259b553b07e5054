#include "engine/tensors/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse::tensors {
namespace {

/// The pieces of one storage instance, sorted by begin.
class Pieces {
 public:
  /// Adds what of `piece` is not known yet. Returns whether there was any. Throws ProgramError when
  /// `piece` contradicts a known piece.
  bool add(ParamPiece piece) {
    bool changed = false;
    auto at =
        std::lower_bound(pieces_.begin(), pieces_.end(), piece.begin,
                         [](const ParamPiece& p, std::int64_t begin) { return p.end <= begin; });
    while (piece.begin < piece.end) {
      if (at == pieces_.end() || at->begin >= piece.end) {
        at = pieces_.insert(at, piece) + 1;
        changed = true;
        break;
      }
      if (at->begin > piece.begin) {
        ParamPiece gap = piece;
        gap.end = at->begin;
        at = pieces_.insert(at, gap) + 1;
        changed = true;
      }
      if (at->group != piece.group || at->offset - at->begin != piece.offset - piece.begin)
        throw ProgramError(
            fmt::format("elements [{}, {}) of a storage would hold two different parameters",
                        std::max(at->begin, piece.begin), std::min(at->end, piece.end)));
      const std::int64_t covered = std::min(at->end, piece.end);
      piece.offset += covered - piece.begin;
      piece.begin = covered;
      ++at;
    }
    return changed;
  }
  const std::vector<ParamPiece>& all() const { return pieces_; }

 private:
  std::vector<ParamPiece> pieces_;
};

using Key = std::pair<Id, int>;       // storage, index of the instance
using Known = std::map<Key, Pieces>;  // of one rank

/// An operand on one rank.
struct Side {
  Known* known = nullptr;
  Key key = {};
  Extent extent = {};
};

/// Element i of `to` is the same parameter as element i of `from`: copies the pieces of `from` to
/// `to`. Returns whether `to` learned anything.
bool carry(const Side& from, const Side& to) {
  const auto found = from.known->find(from.key);
  if (found == from.known->end()) return false;
  const std::vector<ParamPiece> pieces = found->second.all();  // a copy: `to` may be the same
  const std::int64_t length = std::min(from.extent.size(), to.extent.size());
  bool changed = false;
  for (const ParamPiece& piece : pieces) {
    const std::int64_t begin = std::max(piece.begin, from.extent.begin);
    const std::int64_t end = std::min(piece.end, from.extent.begin + length);
    if (begin >= end) continue;
    const std::int64_t shift = to.extent.begin - from.extent.begin;
    changed |= (*to.known)[to.key].add({.begin = begin + shift,
                                        .end = end + shift,
                                        .group = piece.group,
                                        .offset = piece.offset + begin - piece.begin});
  }
  return changed;
}
/// Carries pieces in both directions.
bool relate(const Side& a, const Side& b) {
  const bool forth = carry(a, b);
  return carry(b, a) || forth;
}

/// Starts with the operands of passes (seed), and then relates operands until nothing changes.
class Mapper {
 public:
  Mapper(const link::LinkedProgram& linked, const model::ModelSpec& model)
      : program_(linked.program), linked_(linked), model_(model) {
    known_.resize(program_.world_size);
    places_.resize(program_.channels.size());
    for (std::size_t c = 0; c < program_.channels.size(); ++c) {
      if (program_.channels[c].group.axes == 0 && program_.channels[c].group.colour.empty())
        continue;
      places_[c].resize(program_.world_size);
      for (const std::vector<Id>& group : groups_of(program_, program_.channels[c]))
        for (std::size_t i = 0; i < group.size(); ++i)
          places_[c][group[i]] = {.index = static_cast<int>(i),
                                  .count = static_cast<int>(group.size())};
    }
  }

  std::vector<RankMap> run() {
    for (Id rank = 0; rank < known_.size(); ++rank) seed(rank);
    bool changed = true;
    while (changed) {
      changed = false;
      for (Id rank = 0; rank < known_.size(); ++rank)
        while (within(rank)) changed = true;
      changed |= across();
    }
    std::vector<RankMap> maps;
    for (Id rank = 0; rank < known_.size(); ++rank) maps.push_back(result(rank));
    return maps;
  }

 private:
  const program::Role& role_of(Id rank) const { return program_.roles[linked_.role_of[rank]]; }

  Side side(Id rank, const program::Ref& ref) {
    const program::Role& role = role_of(rank);
    return {.known = &known_[rank],
            .key = {role.views[ref.view].storage, ref.index},
            .extent = extent_of(program_, role, ref.view, rank)};
  }

  void seed(Id rank) {
    const program::Role& role = role_of(rank);
    const int tp = place_along(program_, "tp", rank).count;
    for (const program::Op& op : role.ops) {
      const auto* compute = std::get_if<program::Compute>(&op.work);
      if (compute == nullptr) continue;
      for (const program::Slot slot : {program::Slot::param, program::Slot::grad}) {
        const std::vector<Id> groups = slot == program::Slot::param
                                           ? model_.segments.at(compute->segment).groups
                                           : gradients_of(model_, compute->segment, compute->pass);
        std::size_t position = 0;
        for (const program::Ref& ref : op.refs) {
          if (ref.slot != slot) continue;
          if (position >= groups.size())
            throw ProgramError(fmt::format("role {}: more {} operands than segment {} has groups",
                                           role.name,
                                           slot == program::Slot::param ? "param" : "grad",
                                           model_.segments[compute->segment].name));
          const Id group = groups[position++];
          const Side here = side(rank, ref);
          const std::int64_t elements = elements_of(model_.groups[group], tp);
          if (here.extent.size() < elements)
            throw ProgramError(
                fmt::format("role {}: view {} has {} elements, parameter group {} has {}",
                            role.name, role.views[ref.view].name, here.extent.size(),
                            model_.groups[group].name, elements));
          known_[rank][here.key].add({.begin = here.extent.begin,
                                      .end = here.extent.begin + elements,
                                      .group = group,
                                      .offset = 0});
        }
      }
    }
  }

  /// Relates the operands of each op of a rank, first forwards through the ops, then backwards.
  bool within(Id rank) {
    const program::Role& role = role_of(rank);
    bool changed = false;
    for (const program::Op& op : role.ops) changed |= relate_op(rank, op);
    for (std::size_t i = role.ops.size(); i-- > 0;) changed |= relate_op(rank, role.ops[i]);
    return changed;
  }

  bool relate_op(Id rank, const program::Op& op) {
    return std::visit(
        program::overloaded{
            [](const program::Compute&) { return false; },
            [&](const program::Kernel& kernel) {
              if (kernel.kind == program::KernelKind::cast)
                return relate_slots(rank, op, {program::Slot::source, program::Slot::target});
              if (kernel.kind == program::KernelKind::select)
                return relate_slots(rank, op, {program::Slot::source, program::Slot::residual});
              if (kernel.kind == program::KernelKind::project)
                return relate_slots(rank, op, {program::Slot::source, program::Slot::residual});
              if (kernel.kind == program::KernelKind::quantise)
                return relate_slots(
                    rank, op,
                    {program::Slot::source, program::Slot::residual, program::Slot::sum_residual});
              if (averages(kernel.kind))
                return relate_slots(rank, op,
                                    {program::Slot::source, program::Slot::target,
                                     program::Slot::anchor, program::Slot::outer_moment});
              return false;
            },
            [&](const program::Update&) {
              return relate_slots(
                  rank, op,
                  {program::Slot::param, program::Slot::grad, program::Slot::moment1,
                   program::Slot::moment2, program::Slot::master});
            },
            [&](const program::Collective& collective) {
              const program::Ref* source = find(op, program::Slot::source);
              const program::Ref* target = find(op, program::Slot::target);
              if (source == nullptr || target == nullptr) return false;
              if (collective.move == program::Move::all_to_all ||  // of packets
                  parts_of_root(collective.move))                  // of messages
                return false;
              Side from = side(rank, *source), to = side(rank, *target);
              const GroupPlace place = places_[collective.channel].at(rank);
              if (collective.move == program::Move::all_gather)
                to.extent = part_of(to.extent, place.index, place.count);
              if (collective.move == program::Move::reduce_scatter)
                from.extent = part_of(from.extent, place.index, place.count);
              return relate(from, to);
            },
            [](const program::Send&) { return false; },
            [](const program::Recv&) { return false; },
            [](const program::Put&) { return false; },
            [](const program::Take&) { return false; },
            // The parts of a snapshot are those of the state that it is a copy of.
            [&](const program::Copy&) {
              const program::Storage& source =
                  role_of(rank).storages[role_of(rank).views[op.refs.front().view].storage];
              if (source.life == program::Life::state) return false;
              return relate_slots(rank, op, {program::Slot::source, program::Slot::target});
            },
            [](const program::Save&) { return false; },
            [](const program::Pause&) { return false; },
            [](const program::Issue&) { return false; },
        },
        op.work);
  }

  /// Relates the operands of these slots, which have the same elements.
  bool relate_slots(Id rank, const program::Op& op, std::initializer_list<program::Slot> slots) {
    std::optional<Side> first;
    bool changed = false;
    for (const program::Slot slot : slots) {
      const program::Ref* ref = find(op, slot);
      if (ref == nullptr) continue;
      const Side here = side(rank, *ref);
      if (first) changed |= relate(*first, here);
      if (!first) first = here;
    }
    return changed;
  }

  /// Relates operands of different ranks: what one rank sends is what another one receives.
  bool across() {
    bool changed = false;
    for (Id rank = 0; rank < known_.size(); ++rank) {
      const program::Role& role = role_of(rank);
      for (std::size_t i = 0; i < role.ops.size(); ++i) {
        const program::Op& op = role.ops[i];
        if (const auto* send = std::get_if<program::Send>(&op.work)) {
          const program::Role& peer = program_.roles[send->peer];
          const Id to = peer.ranks[linked_.place_of[rank] % peer.ranks.size()];
          const Id peer_op = linked_.roles[linked_.role_of[rank]].ops[i].peer_op;
          changed |= relate_payload(rank, op, program::Slot::source, to, peer.ops[peer_op],
                                    program::Slot::target);
        } else if (const auto* put = std::get_if<program::Put>(&op.work)) {
          for (const Id to : program_.roles[put->peer].ranks)
            changed |= across_mailbox(rank, op, put->channel, to);
        } else if (const auto* collective = std::get_if<program::Collective>(&op.work)) {
          changed |= across_collective(rank, static_cast<Id>(i), *collective);
        }
      }
    }
    return changed;
  }

  bool relate_payload(Id rank_a, const program::Op& a, program::Slot slot_a, Id rank_b,
                      const program::Op& b, program::Slot slot_b) {
    const program::Ref* from = find(a, slot_a);
    const program::Ref* to = find(b, slot_b);
    if (from == nullptr || to == nullptr) return false;
    const Side here = side(rank_a, *from), there = side(rank_b, *to);
    return here.extent.size() == there.extent.size() && relate(here, there);
  }

  /// Relates the payload of a put of `rank` to the target of each take of `to` on the channel.
  bool across_mailbox(Id rank, const program::Op& op, Id channel, Id to) {
    bool changed = false;
    for (const program::Op& taker : role_of(to).ops) {
      const auto* take = std::get_if<program::Take>(&taker.work);
      if (take != nullptr && take->channel == channel)
        changed |=
            relate_payload(rank, op, program::Slot::source, to, taker, program::Slot::target);
    }
    return changed;
  }

  /// Relates the members of an all-reduce, broadcast or reduce, which have equal layouts.
  bool across_collective(Id rank, Id op, const program::Collective& collective) {
    if (collective.move == program::Move::all_gather ||
        collective.move == program::Move::reduce_scatter ||
        collective.move == program::Move::all_to_all || parts_of_root(collective.move))
      return false;
    const Id role = linked_.role_of[rank];
    bool changed = false;
    for (const link::RoleOp& other : linked_.events[linked_.event_of[role][op]]) {
      if (other.role == role) continue;
      for (const Id peer : program_.roles[other.role].ranks)
        if (same_group(collective.channel, rank, peer))
          changed |=
              relate_payload(rank, program_.roles[role].ops[op], program::Slot::source, peer,
                             program_.roles[other.role].ops[other.op], program::Slot::target);
    }
    return changed;
  }

  bool same_group(Id channel, Id a, Id b) const {
    for (const std::vector<Id>& group : groups_of(program_, program_.channels[channel])) {
      const auto has = [&](Id rank) {
        return std::find(group.begin(), group.end(), rank) != group.end();
      };
      if (has(a)) return has(b);
    }
    return false;
  }

  RankMap result(Id rank) {
    const program::Role& role = role_of(rank);
    const GroupPlace tp = place_along(program_, "tp", rank);
    RankMap map{.tp_rank = tp.index, .tp_size = tp.count, .storages = {}};
    map.storages.resize(role.storages.size());
    for (std::size_t s = 0; s < role.storages.size(); ++s)
      if (const auto found = known_[rank].find({static_cast<Id>(s), 0});
          found != known_[rank].end())
        map.storages[s].pieces = found->second.all();
    for (const program::Op& op : role.ops)
      for (const program::Ref& ref : op.refs) {
        StorageMap& storage = map.storages[role.views[ref.view].storage];
        if (storage.kind == StorageKind::other) storage.kind = kind_of(ref);
        if (ref.mode != program::Mode::read) storage.own |= ref.layout.own;
        if (changes_weights(op) && ref.mode != program::Mode::read) storage.updated = true;
      }
    for (std::size_t s = 0; s < role.storages.size(); ++s) {
      // A state with pieces but no such slot is a parameter too: collectives or servers use it.
      StorageMap& storage = map.storages[s];
      if (storage.kind == StorageKind::other && !storage.pieces.empty() &&
          role.storages[s].life == program::Life::state)
        storage.kind = StorageKind::param;
    }
    return map;
  }

  /// A host that updates copies the new weights to the device; a server may add to them.
  static bool changes_weights(const program::Op& op) {
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    return std::holds_alternative<program::Update>(op.work) ||
           std::holds_alternative<program::Copy>(op.work) ||
           (kernel != nullptr && kernel->kind == program::KernelKind::mix);
  }

  static StorageKind kind_of(const program::Ref& ref) {
    switch (ref.slot) {
      case program::Slot::param:
        return StorageKind::param;
      case program::Slot::grad:
        return StorageKind::grad;
      case program::Slot::moment1:
        return StorageKind::moment1;
      case program::Slot::moment2:
        return StorageKind::moment2;
      case program::Slot::master:
        return StorageKind::master;
      case program::Slot::residual:
        return StorageKind::residual;
      case program::Slot::scale:
        return StorageKind::scale;
      case program::Slot::sum_residual:
        return StorageKind::sum_residual;
      case program::Slot::anchor:  // what is only compared with is no anchor
        return ref.mode == program::Mode::read ? StorageKind::other : StorageKind::anchor;
      case program::Slot::outer_moment:
        return StorageKind::outer_moment;
      default:
        return StorageKind::other;
    }
  }

  const program::Program& program_;
  const link::LinkedProgram& linked_;
  const model::ModelSpec& model_;
  std::vector<Known> known_;                     // by rank
  std::vector<std::vector<GroupPlace>> places_;  // by channel and rank
};

}  // namespace

std::vector<RankMap> map_tensors(const link::LinkedProgram& linked, const model::ModelSpec& model) {
  return Mapper(linked, model).run();
}

}  // namespace rehearse::tensors
