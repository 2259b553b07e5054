#include "engine/tensors/tensor_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/names.h"
#include "engine/tensors/variance.h"

namespace rehearse::tensors {

std::string PartKey::text() const {
  return fmt::format("{}/{}/age{}/copy{}/tp{}of{}/{}-{}", name_of(kind), tensor, age, copy, tp_rank,
                     tp_size, begin, end);
}

GroupPlace residual_place(const link::LinkedProgram& linked, const std::vector<RankMap>& maps,
                          Id rank, Id group) {
  const auto owes = [&](Id other) {
    return std::ranges::any_of(maps[other].storages, [&](const StorageMap& storage) {
      return storage.kind == StorageKind::residual &&
             std::ranges::any_of(storage.pieces,
                                 [&](const ParamPiece& piece) { return piece.group == group; });
    });
  };
  GroupPlace place{.index = 0, .count = 0};
  const program::Axes data = data_axes(linked.program);
  for (const std::vector<Id>& replicas : groups_of(linked.program, {.group = {.axes = data}})) {
    if (std::ranges::find(replicas, rank) == replicas.end()) continue;
    for (const Id other : replicas) {
      if (!owes(other)) continue;
      place.index += other < rank;
      ++place.count;
    }
  }
  return place;
}

std::vector<TensorPart> parts_of(const link::LinkedProgram& linked, const model::ModelSpec& model,
                                 const std::vector<RankMap>& maps, Id rank) {
  const RankMap& map = maps[rank];
  const program::Role& role = linked.program.roles[linked.role_of[rank]];
  std::vector<TensorPart> parts;
  for (Id s = 0; s < role.storages.size(); ++s) {
    const program::Storage& storage = role.storages[s];
    // Observations belong to one warm-up on one mesh. A resumed run starts new ones.
    if (storage.life != program::Life::state || is_observation(role, s)) continue;
    const StorageMap& mapped = map.storages[s];
    const bool own = mapped.kind == StorageKind::other;  // of the rank itself, not of a tensor
    if (mapped.pieces.empty() && !own && mapped.kind != StorageKind::scale)
      continue;  // a shard behind the end of its bucket: nothing but padding
    for (int age = 1; age <= storage.versions; ++age) {
      if (mapped.pieces.empty()) {
        // All ranks share the loss scale. Other storages without tensors are each rank's own.
        const bool shared = mapped.kind == StorageKind::scale;
        parts.push_back(
            {.key = {.kind = mapped.kind,
                     .age = age,
                     .tensor = shared ? "scale" : fmt::format("{}.{}", role.name, storage.name),
                     .copy = shared ? 0 : static_cast<int>(rank),
                     .end = storage.elements},
             .storage = s});
        continue;
      }
      for (const ParamPiece& piece : mapped.pieces) {
        const int copy =
            mapped.kind == StorageKind::residual
                ? residual_place(linked, maps, rank, piece.group).index
                : place_of(linked.program, mapped.own, rank).index;  // 0 where copies are equal
        for (const TensorInterval& tensor : tensors_of(model.groups[piece.group], map.tp_size)) {
          const std::int64_t last = piece.offset + piece.end - piece.begin;
          const std::int64_t begin = std::max(tensor.begin, piece.offset);
          const std::int64_t end = std::min(tensor.end, last);
          if (begin >= end) continue;
          const bool split = model.groups[piece.group].split && tensor.spec->split >= 0;
          parts.push_back({.key = {.kind = mapped.kind,
                                   .age = age,
                                   .tensor = tensor.spec->name,
                                   .copy = copy,
                                   .tp_rank = split ? map.tp_rank : 0,
                                   .tp_size = split ? map.tp_size : 1,
                                   .begin = begin - tensor.begin,
                                   .end = end - tensor.begin},
                           .storage = s,
                           .begin = piece.begin + begin - piece.offset});
        }
      }
    }
  }
  return parts;
}

std::vector<std::vector<TensorPart>> owned_parts(const link::LinkedProgram& linked,
                                                 const model::ModelSpec& model,
                                                 const std::vector<RankMap>& maps) {
  std::vector<std::vector<TensorPart>> owned(maps.size());
  std::set<PartKey> taken;
  for (Id rank = 0; rank < maps.size(); ++rank)
    for (TensorPart& part : parts_of(linked, model, maps, rank)) {
      if (part.key.kind == StorageKind::param && !maps[rank].storages[part.storage].updated)
        continue;
      if (taken.insert(part.key).second) owned[rank].push_back(std::move(part));
    }
  return owned;
}

std::vector<std::vector<TensorPart>> shared_parts(const link::LinkedProgram& linked,
                                                  const model::ModelSpec& model,
                                                  const std::vector<RankMap>& maps) {
  constexpr std::int64_t least = 1024;  // elements of a share: a file names each of them
  struct Holder {
    Id rank = none;
    TensorPart part = {};
  };
  std::map<PartKey, std::vector<Holder>> holders;
  for (Id rank = 0; rank < maps.size(); ++rank)
    for (TensorPart& part : parts_of(linked, model, maps, rank)) {
      if (part.key.kind == StorageKind::param && !maps[rank].storages[part.storage].updated)
        continue;
      // Of several copies on one rank, the first is saved.
      std::vector<Holder>& all = holders[part.key];
      if (all.empty() || all.back().rank != rank) all.push_back({rank, std::move(part)});
    }
  std::vector<std::vector<TensorPart>> saved(maps.size());
  std::size_t small = 0;  // parts that were not divided so far
  for (const auto& [key, all] : holders) {
    const std::int64_t size = key.end - key.begin;
    const auto shares = static_cast<std::int64_t>(all.size());
    if (size < least * shares) {
      const Holder& one = all[small++ % all.size()];
      saved[one.rank].push_back(one.part);
      continue;
    }
    for (std::int64_t i = 0; i < shares; ++i) {
      TensorPart share = all[static_cast<std::size_t>(i)].part;
      const std::int64_t begin = size * i / shares;
      share.begin += begin;
      share.key.begin = key.begin + begin;
      share.key.end = key.begin + size * (i + 1) / shares;
      saved[all[static_cast<std::size_t>(i)].rank].push_back(std::move(share));
    }
  }
  return saved;
}

std::vector<std::vector<TensorPart>> snapshot_parts(const link::LinkedProgram& linked,
                                                    const model::ModelSpec& model,
                                                    const std::vector<RankMap>& maps) {
  std::vector<std::vector<TensorPart>> saved(maps.size());
  std::set<PartKey> taken;
  for (Id rank = 0; rank < maps.size(); ++rank) {
    const program::Role& role = linked.program.roles[linked.role_of[rank]];
    const std::vector<TensorPart> parts = parts_of(linked, model, maps, rank);
    for (const program::Op& op : role.ops) {
      if (!std::holds_alternative<program::Copy>(op.work)) continue;
      const program::Ref& from = *find(op, program::Slot::source);
      const program::Ref& to = *find(op, program::Slot::target);
      const Id state = role.views[from.view].storage;
      const Extent copied = extent_of(linked.program, role, from.view, rank);
      for (const TensorPart& part : parts) {
        if (part.storage != state || part.key.age != from.age + 1) continue;
        if (part.key.kind == StorageKind::param && !maps[rank].storages[state].updated) continue;
        const std::int64_t size = part.key.end - part.key.begin;
        const std::int64_t begin = std::max(part.begin, copied.begin);
        const std::int64_t end = std::min(part.begin + size, copied.end);
        if (begin >= end) continue;
        TensorPart mine = part;
        mine.storage = role.views[to.view].storage;
        mine.begin = begin - copied.begin;
        mine.key.end = part.key.begin + end - part.begin;
        mine.key.begin += begin - part.begin;
        if (taken.insert(mine.key).second) saved[rank].push_back(std::move(mine));
      }
    }
  }
  return saved;
}

std::int64_t elements_of(const model::TensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

void copy_part(const model::TensorSpec& spec, bool split, int tp_rank, int tp_size,
               std::int64_t begin, std::int64_t end, int width, std::byte* whole, std::byte* part,
               Direction direction) {
  // Of every `stride` consecutive elements of the whole tensor, this rank has the `run` elements
  // that begin at `first`: with shape (outer, split, inner), stride = split * inner.
  std::int64_t stride = elements_of(spec);
  if (split && spec.split >= 0)
    stride = std::accumulate(spec.shape.begin() + spec.split, spec.shape.end(), std::int64_t{1},
                             std::multiplies<>());
  else
    tp_rank = 0, tp_size = 1;
  const std::int64_t run = stride / tp_size, first = run * tp_rank;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t row = at / run, column = at % run;
    const std::int64_t count = std::min(run - column, end - at);
    std::byte* const in_whole = whole + (row * stride + first + column) * width;
    std::byte* const in_part = part + (at - begin) * width;
    if (direction == Direction::to_whole)
      std::memcpy(in_whole, in_part, count * width);
    else
      std::memcpy(in_part, in_whole, count * width);
    at += count;
  }
}

}  // namespace rehearse::tensors
