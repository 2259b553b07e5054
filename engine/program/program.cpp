// Sizes, groups and operands of a program.
#include "engine/program/program.h"

#include <algorithm>

namespace rehearse::program {

int size_of(const Program& program, Axes axes) {
  int n = 1;
  for (std::size_t a = 0; a < program.mesh.size(); ++a)
    if (axes >> a & 1) n *= program.mesh[a].size;
  return n;
}

Axes axis_named(const Program& program, const std::string& name) {
  for (std::size_t a = 0; a < program.mesh.size(); ++a)
    if (program.mesh[a].name == name && program.mesh[a].size > 1) return Axes{1} << a;
  return 0;
}

Axes data_axes(const Program& program) {
  return axis_named(program, "dp") | axis_named(program, "replicate") |
         axis_named(program, "shard");
}

Axes gradient_axes(const Program& program) {
  return data_axes(program) | axis_named(program, "cp");
}

Cut cut_of(const Program& program) {
  for (const Axis& axis : program.mesh)
    if (axis.name == "cp") return axis.cut;
  return Cut::contiguous;
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

Place place_of(const Role& role, const Op& op) {
  const Ref* gradient = nullptr;
  if (std::holds_alternative<Update>(op.work)) gradient = find(op, Slot::grad);
  if (const auto* kernel = std::get_if<Kernel>(&op.work);
      kernel != nullptr && kernel->kind == KernelKind::measure)
    gradient = find(op, Slot::source);
  return gradient == nullptr ? Place::device
                             : role.storages[role.views[gradient->view].storage].place;
}

DType dtype_of(const Role& role, const Op& op) {
  const Ref* of = find(op, Slot::param);
  if (of == nullptr && std::holds_alternative<Compute>(op.work)) of = find(op, Slot::source);
  return of == nullptr ? DType::f32 : role.storages[role.views[of->view].storage].dtype;
}

ConvertedGradients converted_gradients(const Program& program, const Role& role, const Op& op) {
  ConvertedGradients out;
  const auto type_of = [&](const Ref& ref) {
    return role.storages[role.views[ref.view].storage].dtype;
  };
  const Ref* const param = find(op, Slot::param);
  if (param == nullptr || !std::holds_alternative<Compute>(op.work)) return out;
  for (const Ref& ref : op.refs) {
    if (ref.slot != Slot::grad || type_of(ref) == type_of(*param)) continue;
    const std::int64_t elements = elements_of(program, role, ref);
    ++out.groups, out.elements += elements, out.largest = std::max(out.largest, elements);
  }
  return out;
}

GroupOfRank group_of_rank(const Program& program, const Channel& channel) {
  const std::vector<Id>& colours = channel.group.colour;
  if (!colours.empty()) {  // groups in the order of their colours
    std::vector<Id> known(colours);
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    if (!known.empty() && known.back() == none) known.pop_back();
    GroupOfRank out{.of = std::vector<Id>(colours.size(), none),
                    .groups = static_cast<Id>(known.size())};
    for (std::size_t rank = 0; rank < colours.size(); ++rank)
      if (colours[rank] != none)
        out.of[rank] = static_cast<Id>(std::lower_bound(known.begin(), known.end(), colours[rank]) -
                                       known.begin());
    return out;
  }
  Id ranks = 1;
  for (const Axis& axis : program.mesh) ranks *= static_cast<Id>(axis.size);
  GroupOfRank out{.of = std::vector<Id>(ranks),
                  .groups = ranks / static_cast<Id>(size_of(program, channel.group.axes))};
  // A group is identified by its coordinates along the axes that are not its own. The loop counts
  // these coordinates up with the rank, the last axis first.
  const std::size_t axes = program.mesh.size();
  std::vector<Id> stride(axes, 0), place(axes, 0);
  Id of_group = 1;
  for (std::size_t a = axes; a-- > 0;)
    if (!(channel.group.axes >> a & 1))
      stride[a] = of_group, of_group *= static_cast<Id>(program.mesh[a].size);
  Id group = 0;
  for (Id rank = 0; rank < ranks; ++rank) {
    out.of[rank] = group;
    for (std::size_t a = axes; a-- > 0;) {
      group += stride[a];
      if (++place[a] < static_cast<Id>(program.mesh[a].size)) break;
      group -= stride[a] * place[a], place[a] = 0;
    }
  }
  return out;
}

std::vector<std::vector<Id>> groups_of(const Program& program, const Channel& channel) {
  const GroupOfRank by_rank = group_of_rank(program, channel);
  std::vector<std::vector<Id>> groups(by_rank.groups);
  for (Id rank = 0; rank < by_rank.of.size(); ++rank)
    if (const Id group = by_rank.of[rank]; group != none) groups[group].push_back(rank);
  return groups;
}

const Ref* find(const Op& op, Slot slot) {
  for (const Ref& ref : op.refs)
    if (ref.slot == slot) return &ref;
  return nullptr;
}

Id channel_of(const Work& work) {
  return std::visit(
      overloaded{[](const Compute&) { return none; }, [](const Kernel&) { return none; },
                 [](const Update&) { return none; }, [](const Copy&) { return none; },
                 [](const Save&) { return none; }, [](const Pause&) { return none; },
                 [](const Issue&) { return none; }, [](const auto& op) { return op.channel; }},
      work);
}

}  // namespace rehearse::program
