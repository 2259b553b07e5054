#include "runtime/executor/operations/forward_slice.h"

#include <algorithm>

namespace rehearse::runtime {
namespace {

bool ends_slice(const program::Work& work) {
  return std::visit(program::overloaded{
                        [](const program::Compute& c) { return c.pass != program::Pass::forward; },
                        [](const program::Kernel&) { return false; },
                        [](const program::Update&) { return true; },
                        [](const program::Collective&) { return false; },
                        [](const program::Send&) { return false; },
                        [](const program::Recv&) { return false; },
                        [](const program::Put&) { return true; },
                        [](const program::Take&) { return true; },
                        [](const program::Copy&) { return true; },
                        [](const program::Save&) { return true; },
                        [](const program::Pause&) { return true; },
                        [](const program::Issue&) { return true; },
                    },
                    work);
}

class Slicer {
 public:
  explicit Slicer(const link::LinkedProgram& linked) : linked_(linked) {
    for (const program::Role& role : linked.program.roles) wanted_.emplace_back(role.ops.size());
  }

  std::vector<std::vector<bool>> run() {
    for (Id r = 0; r < wanted_.size(); ++r) {
      const program::Role& role = linked_.program.roles[r];
      for (Id op = 0; op < role.ops.size(); ++op) {
        const auto* compute = std::get_if<program::Compute>(&role.ops[op].work);
        const program::Ref* stats = find(role.ops[op], program::Slot::stats);
        if (compute == nullptr || !is_backward(compute->pass) || stats == nullptr) continue;
        wanted_[r][op] = true;
        want_writers(r, op, *stats);
      }
    }
    while (!open_.empty()) {
      const link::RoleOp at = open_.back();
      open_.pop_back();
      follow(at);
    }
    return std::move(wanted_);
  }

 private:
  void want(Id role, Id op) {
    if (wanted_[role][op] || ends_slice(linked_.program.roles[role].ops[op].work)) return;
    wanted_[role][op] = true;
    open_.push_back({.role = role, .op = op});
  }

  void follow(link::RoleOp at) {
    const program::Op& op = linked_.program.roles[at.role].ops[at.op];
    for (const program::Ref& ref : op.refs)
      if (ref.mode != program::Mode::write && ref.age == 0) want_writers(at.role, at.op, ref);
    if (const auto* recv = std::get_if<program::Recv>(&op.work))
      want(recv->peer, linked_.roles[at.role].ops[at.op].peer_op);
    else if (const auto* send = std::get_if<program::Send>(&op.work))
      want(send->peer, linked_.roles[at.role].ops[at.op].peer_op);
    else if (std::holds_alternative<program::Collective>(op.work))
      for (const link::RoleOp& partner : linked_.events[linked_.event_of[at.role][at.op]])
        want(partner.role, partner.op);
  }

  /// Adds the ops whose writes `reader` sees in `ref`: those that write an overlapping part of the
  /// same instance, back to the last one that overwrites all of the view.
  void want_writers(Id role_id, Id reader, const program::Ref& ref) {
    const program::Role& role = linked_.program.roles[role_id];
    const program::View& view = role.views[ref.view];
    for (Id op = reader; op-- > 0;)
      for (const program::Ref& written : role.ops[op].refs) {
        const program::View& other = role.views[written.view];
        if (written.mode == program::Mode::read || other.storage != view.storage ||
            written.index != ref.index || other.end <= view.begin || view.end <= other.begin)
          continue;
        want(role_id, op);
        if (written.mode == program::Mode::write && other.slice == 0 && other.begin <= view.begin &&
            view.end <= other.end)
          return;
      }
  }

  const link::LinkedProgram& linked_;
  std::vector<std::vector<bool>> wanted_ = {};
  std::vector<link::RoleOp> open_ = {};
};

}  // namespace

std::vector<std::vector<bool>> forward_slice(const link::LinkedProgram& linked) {
  return Slicer(linked).run();
}

}  // namespace rehearse::runtime
