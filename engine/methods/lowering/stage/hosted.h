// Activations that are in the memory of the host between forward and backward
// (plan::HostActivations). What forward keeps goes there in the lane act.d2h and comes back in the
// lane act.h2d, beside the passes of other segments:
//
//   compute   forward 1  forward 2  forward 3  ...  backward 3  backward 2  backward 1
//   act.d2h              1 ------>  2 ------>
//   act.h2d                                    2 ------>   1 ------>
//
// Segments whose backward would have them back at once stay on the device.
#pragma once
#include <vector>

#include "engine/methods/lowering/stage/activations.h"
#include "engine/methods/pass_order.h"
#include "engine/plan/plan.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

class Hosted {
 public:
  /// The arguments must outlive this object.
  Hosted(program::RoleBuilder& role, const plan::Plan& plan, const model::ModelSpec& model,
         Activations& activations);

  /// Comes before anything is asked for. `keeps`, by segment: forward keeps something of it.
  void expect(const std::vector<Action>& actions, const std::vector<bool>& keeps);
  /// Whether what this pass keeps of the segment goes to the host, or what this backward reads of
  /// it comes from there.
  bool moves(Id segment, const Action& action) const;
  /// The copies of a segment's activations, in forward and before its backward. The latter wait
  /// for the op `gate`; none: they do not.
  void to_host(const std::vector<program::Ref>& kept, const Action& action);
  void to_device(const std::vector<program::Ref>& kept, Id gate, const Action& action);
  /// The view of what came back of what `view` kept.
  Id back(Id view) { return activations_.moved(view).back; }
  /// The copy that ends before the next segment's forward begins, so that at most `ahead` segments
  /// wait for theirs. none: there are fewer.
  Id forward_gate() const;

 private:
  void copy(const char* lane, program::Ref from, Id to, Id gate, const Action& action);

  program::RoleBuilder& role_;
  const plan::Plan& plan_;
  Activations& activations_;
  std::vector<bool> hosted_;             // [segment]: what it keeps may go to the host
  std::vector<bool> last_ = {};          // [segment]: of its chunk's last ones
  std::vector<std::vector<bool>> next_;  // [chunk][micro-batch]: its backward follows its forward
  std::vector<Id> to_host_ = {};         // the last copy of each segment's forward
};

}  // namespace rehearse::methods
