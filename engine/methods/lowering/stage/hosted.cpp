#include "engine/methods/lowering/stage/hosted.h"

namespace rehearse::methods {

Hosted::Hosted(program::RoleBuilder& role, const plan::Plan& plan, const model::ModelSpec& model,
               Activations& activations)
    : role_(role),
      plan_(plan),
      activations_(activations),
      hosted_(plan::hosted(plan, model)),
      next_(plan.placement.stages.size(),
            std::vector<bool>(static_cast<std::size_t>(plan.schedule.micro_batches))) {}

void Hosted::expect(const std::vector<Action>& actions, const std::vector<bool>& keeps) {
  if (!plan_.schedule.hosted.on) return;
  last_.assign(keeps.size(), false);
  for (const std::vector<Id>& chunk : plan_.placement.stages) {
    int left = plan_.schedule.hosted.ahead;
    for (auto s = chunk.rbegin(); s != chunk.rend() && left > 0; ++s)
      if (keeps[*s]) last_[*s] = true, --left;
  }
  for (Id s = 0; s < keeps.size(); ++s) hosted_[s] = hosted_[s] && keeps[s];
  for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
    const Action &now = actions[i], &then = actions[i + 1];
    if (now.pass == program::Pass::forward && is_backward(then.pass) && now.chunk == then.chunk &&
        now.microbatch == then.microbatch && now.shift == then.shift)
      next_[static_cast<std::size_t>(now.chunk)][static_cast<std::size_t>(now.microbatch)] = true;
  }
}

bool Hosted::moves(Id segment, const Action& action) const {
  return hosted_[segment] &&
         !(last_[segment] && next_[static_cast<std::size_t>(action.chunk)]
                                  [static_cast<std::size_t>(action.microbatch)]);
}

void Hosted::copy(const char* lane, program::Ref from, Id to, Id gate, const Action& action) {
  from.slot = program::Slot::source, from.mode = program::Mode::read;
  program::Ref target = from;
  target.view = to, target.slot = program::Slot::target, target.mode = program::Mode::write;
  const Id op = role_.op(lane, program::Copy{}, {from, target}, action.shift);
  if (gate != none) role_.throttle(op, gate);
}

void Hosted::to_host(const std::vector<program::Ref>& kept, const Action& action) {
  for (const program::Ref& ref : kept)
    copy("act.d2h", ref, activations_.moved(ref.view).host, none, action);
  if (!kept.empty()) to_host_.push_back(static_cast<Id>(role_.role().ops.size() - 1));
}

void Hosted::to_device(const std::vector<program::Ref>& kept, Id gate, const Action& action) {
  for (program::Ref ref : kept) {
    const Activations::Moved moved = activations_.moved(ref.view);
    ref.view = moved.host;
    copy("act.h2d", ref, moved.back, gate, action);
  }
}

Id Hosted::forward_gate() const {
  const auto places = static_cast<std::size_t>(plan_.schedule.hosted.ahead) + 1;
  return to_host_.size() < places ? none : to_host_[to_host_.size() - places];
}

}  // namespace rehearse::methods
