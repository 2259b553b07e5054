#include "runtime/execution/forward_slice.h"

#include <algorithm>

namespace rehearse {
namespace {

bool ends_slice(const Work& work) {
  return std::visit(overloaded{
                        [](const Compute& c) { return c.pass != Pass::forward; },
                        [](const Kernel&) { return false; },
                        [](const Update&) { return true; },
                        [](const Collective&) { return false; },
                        [](const Send&) { return false; },
                        [](const Recv&) { return false; },
                        [](const Put&) { return true; },
                        [](const Take&) { return true; },
                    },
                    work);
}

class Slicer {
 public:
  explicit Slicer(const LinkedProgram& linked) : linked_(linked) {
    for (const Role& role : linked.program.roles) wanted_.emplace_back(role.ops.size());
  }

  std::vector<std::vector<bool>> run() {
    for (Id r = 0; r < wanted_.size(); ++r) {
      const Role& role = linked_.program.roles[r];
      for (Id op = 0; op < role.ops.size(); ++op) {
        const auto* compute = std::get_if<Compute>(&role.ops[op].work);
        const Ref* stats = find(role.ops[op], Slot::stats);
        if (compute == nullptr || compute->pass != Pass::backward || stats == nullptr) continue;
        wanted_[r][op] = true;
        want_writers(r, op, *stats);
      }
    }
    while (!open_.empty()) {
      const RoleOp at = open_.back();
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

  void follow(RoleOp at) {
    const Op& op = linked_.program.roles[at.role].ops[at.op];
    for (const Ref& ref : op.refs)
      if (ref.mode != Mode::write && ref.age == 0) want_writers(at.role, at.op, ref);
    if (const auto* recv = std::get_if<Recv>(&op.work))
      want(recv->peer, linked_.roles[at.role].ops[at.op].peer_op);
    else if (const auto* send = std::get_if<Send>(&op.work))
      want(send->peer, linked_.roles[at.role].ops[at.op].peer_op);
    else if (std::holds_alternative<Collective>(op.work))
      for (const RoleOp& partner : linked_.events[linked_.event_of[at.role][at.op]])
        want(partner.role, partner.op);
  }

  /// The ops before `reader` whose writes it sees.
  void want_writers(Id role_id, Id reader, const Ref& ref) {
    const Role& role = linked_.program.roles[role_id];
    const View& view = role.views[ref.view];
    for (Id op = reader; op-- > 0;)
      for (const Ref& written : role.ops[op].refs) {
        const View& other = role.views[written.view];
        if (written.mode == Mode::read || other.storage != view.storage ||
            written.index != ref.index || other.end <= view.begin || view.end <= other.begin)
          continue;
        want(role_id, op);
        if (written.mode == Mode::write && other.slice == 0 && other.begin <= view.begin &&
            view.end <= other.end)
          return;
      }
  }

  const LinkedProgram& linked_;
  std::vector<std::vector<bool>> wanted_ = {};
  std::vector<RoleOp> open_ = {};
};

}  // namespace

std::vector<std::vector<bool>> forward_slice(const LinkedProgram& linked) {
  return Slicer(linked).run();
}

}  // namespace rehearse
