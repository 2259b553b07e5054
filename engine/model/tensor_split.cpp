#include "engine/model/tensor_split.h"

#include <algorithm>

namespace rehearse::model {

TensorSplit tensor_split(const program::Program& p) {
  TensorSplit out = 1;
  out.fp8 = p.fp8;
  program::Axes axes = 0;
  for (std::size_t a = 0; a < p.mesh.size(); ++a) {
    if (p.mesh[a].name == "tp") out.ranks = p.mesh[a].size, axes = program::Axes{1} << a;
    if (p.mesh[a].name == "cp") out.context = p.mesh[a].size;
  }
  const auto any_op = [&](const auto& is) {
    return std::ranges::any_of(
        p.roles, [&](const program::Role& role) { return std::ranges::any_of(role.ops, is); });
  };
  const auto any_pass = [&](const auto& is) {
    return any_op([&](const program::Op& op) {
      const auto* work = std::get_if<program::Compute>(&op.work);
      return work != nullptr && is(*work);
    });
  };
  out.sequence = out.ranks > 1 && any_op([&](const program::Op& op) {
                   const auto* work = std::get_if<program::Collective>(&op.work);
                   return work != nullptr && work->move == program::Move::reduce_scatter &&
                          p.channels[work->channel].group.axes == axes;
                 });
  out.halves = out.sequence && any_pass([](const program::Compute& work) {
                 return work.pass == program::Pass::backward_weight;
               });
  out.heads = out.context > 1 && any_pass([](const program::Compute& work) {
                return work.part == program::Part::attend && work.block == none;
              });
  return out;
}

}  // namespace rehearse::model
