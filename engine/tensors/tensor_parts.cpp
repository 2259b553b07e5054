#include "engine/tensors/tensor_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
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
  program::Axes dp = 0;
  for (std::size_t a = 0; a < linked.program.mesh.size(); ++a)
    if (linked.program.mesh[a].name == "dp") dp = program::Axes{1} << a;
  for (const std::vector<Id>& replicas : groups_of(linked.program, {.group = {.axes = dp}})) {
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
    for (int age = 1; age <= storage.versions; ++age) {
      if (mapped.kind == StorageKind::scale || mapped.pieces.empty()) {
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
        const int copy = mapped.kind == StorageKind::residual
                             ? residual_place(linked, maps, rank, piece.group).index
                             : 0;
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
