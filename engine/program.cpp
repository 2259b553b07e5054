// Questions that every user of a program asks: sizes, groups, operands.
#include "engine/program.h"

#include <map>

namespace rehearse {

int size_of(const Program& program, Axes axes) {
  int n = 1;
  for (std::size_t a = 0; a < program.mesh.size(); ++a)
    if (axes >> a & 1) n *= program.mesh[a].size;
  return n;
}

std::int64_t elements_of(const Program& program, const Role& role, const Ref& ref) {
  const View& view = role.views[ref.view];
  const std::int64_t all = view.end - view.begin;
  return view.slice == 0 ? all : all / size_of(program, view.slice);
}

std::int64_t bytes_of(const Program& program, const Role& role, const Ref& ref) {
  return elements_of(program, role, ref) *
         size_of(role.storages[role.views[ref.view].storage].dtype);
}

std::vector<std::vector<Id>> groups_of(const Program& program, const Channel& channel) {
  std::vector<std::vector<Id>> groups;
  if (!channel.group.colour.empty()) {
    std::map<Id, std::vector<Id>> by_colour;
    for (Id rank = 0; rank < static_cast<Id>(program.world_size); ++rank)
      if (const Id colour = channel.group.colour[rank]; colour != none)
        by_colour[colour].push_back(rank);
    for (auto& [colour, members] : by_colour) groups.push_back(std::move(members));
    return groups;
  }
  const Axes axes = channel.group.axes;
  Id ranks = 1;
  for (const Axis& axis : program.mesh) ranks *= static_cast<Id>(axis.size);
  const Id members = static_cast<Id>(size_of(program, axes));
  groups.resize(ranks / members);
  for (auto& group : groups) group.reserve(members);
  for (Id rank = 0; rank < ranks; ++rank) {
    // The coordinates along the group's own axes do not tell groups apart; the others do.
    Id group = 0, rest = rank, stride = 1;
    for (std::size_t a = program.mesh.size(); a-- > 0;) {
      const Id size = static_cast<Id>(program.mesh[a].size);
      if (!(axes >> a & 1)) group += rest % size * stride, stride *= size;
      rest /= size;
    }
    groups[group].push_back(rank);
  }
  return groups;
}

const Ref* find(const Op& op, Slot slot) {
  for (const Ref& ref : op.refs)
    if (ref.slot == slot) return &ref;
  return nullptr;
}

}  // namespace rehearse
