// An interpreter for programs of casts, copies, sends and receives, written from docs/program.md
// alone.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::test {

using Memory = std::vector<std::vector<double>>;  // by storage of a rank's role

struct Ends {
  std::int64_t begin, end;
};
inline Ends ends(const program::Role& role, const program::Ref& ref) {
  return {role.views[ref.view].begin, role.views[ref.view].end};
}

inline void cast(const program::Role& role, const program::Op& op, Memory& memory) {
  const auto& kernel = std::get<program::Kernel>(op.work);
  const program::Ref* to = find(op, program::Slot::target);
  const Ends t = ends(role, *to);
  std::vector<double>& target = memory[role.views[to->view].storage];
  const std::int64_t width = kernel.keep > 0 ? kernel.keep : kernel.stride;
  std::int64_t column = 0;
  for (const program::Ref& from : op.refs) {
    if (from.slot != program::Slot::source) continue;
    const Ends s = ends(role, from);
    const std::vector<double>& source = memory[role.views[from.view].storage];
    const bool taken = kernel.keep > 0, woven = !taken && kernel.stride > 1;
    const std::int64_t rows = taken || woven ? (t.end - t.begin) / width : 1;
    const std::int64_t run = woven ? (s.end - s.begin) / rows : (t.end - t.begin) / rows;
    ASSERT_EQ(s.end - s.begin, taken ? (rows - 1) * kernel.stride + run : rows * run);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < run; ++i) {
        double& into = target[t.begin + row * (woven ? width : run) + column + i];
        const double value = source[s.begin + row * (taken ? kernel.stride : run) + i];
        into = (to->mode == program::Mode::add ? into : 0) + value;
      }
    column += run;
  }
  if (kernel.keep == 0 && kernel.stride > 1) {
    ASSERT_EQ(column, width);
  }
}

inline std::vector<double> read(const program::Role& role, const program::Ref& ref,
                                const Memory& memory) {
  const auto storage = memory[role.views[ref.view].storage].begin();
  return {storage + ends(role, ref).begin, storage + ends(role, ref).end};
}

/// A copy, or a transfer: the numbers of a source become those of a target.
inline void deliver(const std::vector<double>& payload, const program::Role& role,
                    const program::Op& op, Memory& memory) {
  const program::Ref* target = find(op, program::Slot::target);
  const auto [begin, end] = ends(role, *target);
  ASSERT_EQ(static_cast<std::int64_t>(payload.size()), end - begin);
  std::copy(payload.begin(), payload.end(),
            memory[role.views[target->view].storage].begin() + begin);
}

/// Whether only copies use host memory.
inline bool on_device(const program::Role& role, const program::Op& op) {
  return std::ranges::all_of(op.refs, [&](const program::Ref& ref) {
    return role.storages[role.views[ref.view].storage].place == program::Place::device;
  });
}

/// Runs the program for one step, in the linker's order. `memory`: by role.
inline void interpret(const link::LinkedProgram& linked, std::vector<Memory>& memory) {
  const program::Program& p = linked.program;
  for (std::size_t k = 0; k < linked.order.size();) {
    const link::OrderedOp& turn = linked.order[k];
    const auto& event = linked.events[linked.event_of[turn.role][turn.op]];
    k += event.size();
    if (event.size() == 1) {
      const program::Role& role = p.roles[turn.role];
      const program::Op& op = role.ops[turn.op];
      Memory& of_rank = memory[turn.role];
      if (std::holds_alternative<program::Copy>(op.work)) {
        deliver(read(role, *find(op, program::Slot::source), of_rank), role, op, of_rank);
      } else {
        ASSERT_TRUE(on_device(role, op));
        cast(role, op, of_rank);
      }
      continue;
    }
    const auto is_send = [&](const link::RoleOp& m) {
      return std::holds_alternative<program::Send>(p.roles[m.role].ops[m.op].work);
    };
    const link::RoleOp from = is_send(event[0]) ? event[0] : event[1];
    const link::RoleOp to = is_send(event[0]) ? event[1] : event[0];
    const program::Role &sender = p.roles[from.role], &receiver = p.roles[to.role];
    const std::vector<double> payload =
        read(sender, *find(sender.ops[from.op], program::Slot::source), memory[from.role]);
    ASSERT_TRUE(on_device(sender, sender.ops[from.op]));
    ASSERT_TRUE(on_device(receiver, receiver.ops[to.op]));
    deliver(payload, receiver, receiver.ops[to.op], memory[to.role]);
  }
}

}  // namespace rehearse::test
