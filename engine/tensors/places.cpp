// A rank's place on the mesh, its part of a view, and the order of a group's tensors in flat
// storage (declared in tensor_map.h).
#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/collectives/algorithms.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::tensors {

std::vector<TensorInterval> tensors_of(const model::ParamGroup& group, int tp_size) {
  std::vector<TensorInterval> slots;
  std::int64_t begin = 0;
  for (const model::TensorSpec& spec : group.tensors) {
    TensorInterval slot{.spec = &spec, .begin = begin, .end = begin, .shape = spec.shape};
    if (group.split && spec.split >= 0) slot.shape[spec.split] /= tp_size;
    slot.end +=
        std::accumulate(slot.shape.begin(), slot.shape.end(), std::int64_t{1}, std::multiplies<>());
    begin = slot.end;
    slots.push_back(std::move(slot));
  }
  return slots;
}

GroupPlace place_of(const program::Program& program, program::Axes axes, Id rank) {
  const std::size_t regular = program.mesh.size();
  if ((axes >> regular) != 0) {
    for (const program::Channel& channel : program.channels) {
      if (channel.group.axes != axes) continue;
      for (const std::vector<Id>& group : groups_of(program, channel)) {
        const auto found = std::find(group.begin(), group.end(), rank);
        if (found != group.end())
          return {.index = static_cast<int>(found - group.begin()),
                  .count = static_cast<int>(group.size())};
      }
    }
    return {};
  }
  std::int64_t inner = 1;
  GroupPlace place;
  for (std::size_t axis = regular; axis-- > 0;) {
    const int size = program.mesh[axis].size;
    if ((axes >> axis) & 1U) {
      place.index += static_cast<int>(rank / inner % size) * place.count;
      place.count *= size;
    }
    inner *= size;
  }
  return rank < inner ? place : GroupPlace{};
}

GroupPlace place_along(const program::Program& program, const std::string& axis, Id rank) {
  for (std::size_t i = 0; i < program.mesh.size(); ++i)
    if (program.mesh[i].name == axis) return place_of(program, program::Axes{1} << i, rank);
  return {};
}

Extent extent_of(const program::Program& program, const program::Role& role, Id view, Id rank) {
  const program::View& v = role.views[view];
  if (v.slice == 0) return {v.begin, v.end};
  const GroupPlace place = place_of(program, v.slice, rank);
  return part_of({v.begin, v.end}, place.index, place.count);
}

Extent part_of(Extent whole, int index, int count) {
  return {whole.begin + collectives::part(whole.size(), index, count),
          whole.begin + collectives::part(whole.size(), index + 1, count)};
}

}  // namespace rehearse::tensors
