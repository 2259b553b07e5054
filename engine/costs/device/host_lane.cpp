#include "engine/costs/device/host_lane.h"

#include <algorithm>
#include <utility>

#include "engine/costs/network/piece.h"
#include "engine/model/launches.h"
#include "engine/model/tensor_split.h"

namespace rehearse::costs {
namespace {

using program::Op;
using software::HostWait;

bool by_arrival(const program::Role& role) {
  return role.free_running ||
         std::any_of(role.lanes.begin(), role.lanes.end(),
                     [](const program::Lane& l) { return l.order == program::Order::arrival; }) ||
         std::any_of(role.ops.begin(), role.ops.end(), [](const Op& op) {
           return std::holds_alternative<program::Put>(op.work) ||
                  std::holds_alternative<program::Take>(op.work);
         });
}

/// Rewrites one role. Its new ops: before each op the host's, in the same order.
class HostLane {
 public:
  HostLane(const program::Program& program, const model::ModelSpec& model, model::TensorSplit split,
           program::Role& role)
      : program_(program), model_(model), how_(model.software), split_(split), role_(role) {
    for (const Op& op : role.ops)
      if (const auto* c = std::get_if<program::Compute>(&op.work))
        if (c->pass == program::Pass::forward)
          first_segment_ = std::min(first_segment_, c->segment);
  }

  void build() {
    const Id lane = static_cast<Id>(role_.lanes.size());
    role_.lanes.push_back({"host"});
    std::vector<Op> old = std::move(role_.ops);
    std::vector<Id> new_id(old.size(), none), host_of(old.size(), none);
    Id issued = none;              // the host's last op
    std::vector<Id> awaited = {};  // ops that the host waits for before it issues the next one
    bool updated = false;
    for (Id o = 0; o < old.size(); ++o) {
      Op& op = old[o];
      // A pause needs no host. Checkpoints are rare: the host's part in them is not counted.
      if (std::holds_alternative<program::Pause>(op.work) ||
          std::holds_alternative<program::Copy>(op.work) ||
          std::holds_alternative<program::Save>(op.work)) {
        new_id[o] = add(std::move(op));
        continue;
      }
      const bool first_update = std::holds_alternative<program::Update>(op.work) && !updated;
      if (first_update && how_.waits_for(HostWait::update)) {
        for (const program::After& after : op.after)
          if (after.lag == 0 && after.op < o) awaited.push_back(new_id[after.op]);
        // Waits on the update's own lane are implied by lane order, so `after` lacks them.
        if (const Id norm = last_norm_in(op); norm != none) awaited.push_back(norm);
      }
      // The op may start when the host begins to issue it. If the end of the host's last op does
      // not say when that is, an op of no length does.
      if (issued == none || !awaited.empty() || out_[issued].shift != op.shift) {
        issued = add({.lane = lane, .work = program::Issue{0}, .shift = op.shift});
        for (const Id other : awaited)
          if (out_[other].shift == op.shift) out_[issued].after.push_back({other});
        awaited.clear();
      }
      host_of[o] = issued;
      issued =
          add({.lane = lane, .work = program::Issue{seconds(op, first_update)}, .shift = op.shift});
      updated = updated || first_update;
      new_id[o] = add(std::move(op));
      if (waited_for(out_[new_id[o]])) awaited.push_back(new_id[o]);
    }
    for (Id o = 0; o < old.size(); ++o) {
      Op& op = out_[new_id[o]];
      for (program::After& after : op.after) after.op = new_id[after.op];
      if (host_of[o] != none) op.after.push_back({host_of[o]});
    }
    role_.ops = std::move(out_);
  }

 private:
  Id add(Op op) {
    out_.push_back(std::move(op));
    return static_cast<Id>(out_.size() - 1);
  }

  /// The last new op of the update's lane that writes the norm which the update reads.
  Id last_norm_in(const Op& update) const {
    const program::Ref* norm = find(update, program::Slot::norm);
    for (Id o = static_cast<Id>(out_.size()); norm != nullptr && o-- > 0;)
      if (out_[o].lane == update.lane)
        for (const program::Ref& ref : out_[o].refs)
          if (ref.view == norm->view && ref.mode != program::Mode::read) return o;
    return none;
  }

  double seconds(const Op& op, bool first_update) const {
    if (const auto* c = std::get_if<program::Compute>(&op.work)) {
      const auto launches =
          launches_of(model_, c->segment, c->pass, c->samples, split_, dtype_of(role_, op),
                      piece_of(program_, role_, *c, model_))
              .size() +
          static_cast<std::size_t>(converted_gradients(program_, role_, op).groups);
      const bool backward = is_backward(c->pass);
      const double fixed = c->pass == program::Pass::forward && c->segment == first_segment_
                               ? how_.microbatch.value
                               : 0;
      return fixed + static_cast<double>(launches) *
                         (backward ? how_.backward_issue : how_.forward_issue).value;
    }
    const bool transfer = std::holds_alternative<program::Send>(op.work) ||
                          std::holds_alternative<program::Recv>(op.work);
    return how_.forward_issue.value + (first_update ? how_.update.value : 0) +
           (transfer ? how_.transfer.value : 0);
  }

  bool waited_for(const Op& op) const {
    const auto* c = std::get_if<program::Compute>(&op.work);
    if (c != nullptr)
      return how_.waits_for(HostWait::loss) && c->pass == program::Pass::forward &&
             model_.segments[c->segment].kind == model::SegmentKind::head;
    return how_.waits_for(HostWait::transfers) && std::holds_alternative<program::Recv>(op.work);
  }

  const program::Program& program_;
  const model::ModelSpec& model_;
  const software::Software& how_;
  const model::TensorSplit split_;
  program::Role& role_;
  Id first_segment_ = none;
  std::vector<Op> out_ = {};
};

}  // namespace

program::Program with_host_lane(program::Program program, const model::ModelSpec& model) {
  if (!model.software.busy_host()) return program;
  // Sequence parallelism launches the same kernels on fewer tokens.
  model::TensorSplit split = model::tensor_split(program);
  split.sequence = false;
  for (program::Role& role : program.roles)
    if (!by_arrival(role)) HostLane(program, model, split, role).build();
  return program;
}

}  // namespace rehearse::costs
