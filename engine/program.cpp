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
  return (view.end - view.begin) / size_of(program, view.slice);
}

std::int64_t bytes_of(const Program& program, const Role& role, const Ref& ref) {
  return elements_of(program, role, ref) *
         size_of(role.storages[role.views[ref.view].storage].dtype);
}

std::vector<std::vector<Id>> groups_of(const Program& program, const Channel& channel) {
  std::map<Id, std::vector<Id>> by_key;
  int mesh_ranks = 1;
  for (const Axis& axis : program.mesh) mesh_ranks *= axis.size;
  const bool regular = channel.group.colour.empty();
  for (Id rank = 0; rank < static_cast<Id>(regular ? mesh_ranks : program.world_size); ++rank) {
    Id key = 0;
    if (regular) {
      // The coordinates along the group's own axes do not tell groups apart; the others do.
      Id rest = rank;
      Id stride = 1;
      for (std::size_t a = program.mesh.size(); a-- > 0;) {
        const Id size = static_cast<Id>(program.mesh[a].size);
        if (!(channel.group.axes >> a & 1)) key += rest % size * stride, stride *= size;
        rest /= size;
      }
    } else {
      key = channel.group.colour[rank];
      if (key == none) continue;
    }
    by_key[key].push_back(rank);
  }
  std::vector<std::vector<Id>> groups;
  for (auto& [key, members] : by_key) groups.push_back(std::move(members));
  return groups;
}

const Ref* find(const Op& op, Slot slot) {
  for (const Ref& ref : op.refs)
    if (ref.slot == slot) return &ref;
  return nullptr;
}

}  // namespace rehearse
