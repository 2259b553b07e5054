#include "runtime/executor/lanes/turnstile.h"

#include <algorithm>
#include <variant>

namespace rehearse::runtime {

bool meets(const program::Work& work) {
  return std::holds_alternative<program::Collective>(work) ||
         std::holds_alternative<program::Send>(work) || std::holds_alternative<program::Recv>(work);
}

std::vector<Turn> turns_of(const link::OrderedProgram& linked, Id role) {
  std::vector<Turn> turns;
  for (const link::OrderedOp& at : linked.order)
    if (at.role == role && meets(linked.program.roles[role].ops[at.op].work))
      turns.push_back({.op = at.op, .offset = at.offset});
  return turns;
}

std::vector<Turn> turns_of(const link::OrderedProgram& linked, Id role,
                           const std::vector<bool>& wanted) {
  std::vector<Turn> turns = turns_of(linked, role);
  std::erase_if(turns, [&](const Turn& turn) { return !wanted[turn.op]; });
  std::ranges::stable_sort(turns, {}, &Turn::offset);
  for (Turn& turn : turns) turn.offset = 0;
  return turns;
}

void Turnstile::begin_run(std::int64_t first, std::int64_t end) {
  const std::lock_guard lock(lock_);
  first_ = iteration_ = first;
  end_ = end;
  at_ = 0;
  max_offset_ = 0;
  for (const Turn& turn : turns_) max_offset_ = std::max(max_offset_, turn.offset);
  skip_what_does_not_run();
}

void Turnstile::lower_end(std::int64_t end) {
  const std::lock_guard lock(lock_);
  end_ = std::min(end_, end);
  skip_what_does_not_run();
  moved_.notify_all();
}

bool Turnstile::enter(Id op, std::int64_t step) {
  if (turns_.empty()) return true;
  std::unique_lock lock(lock_);
  moved_.wait(lock, [&] {
    return step >= end_ || (turns_[at_].op == op && iteration_ - turns_[at_].offset == step);
  });
  return step < end_;
}

void Turnstile::leave() {
  if (turns_.empty()) return;
  const std::lock_guard lock(lock_);
  ++at_;
  skip_what_does_not_run();
  moved_.notify_all();
}

void Turnstile::skip_what_does_not_run() {
  if (turns_.empty()) return;  // a free-running rank has two billion steps to skip otherwise
  while (iteration_ < end_ + max_offset_) {
    for (; at_ < turns_.size(); ++at_) {
      const std::int64_t step = iteration_ - turns_[at_].offset;
      if (step >= first_ && step < end_) return;
    }
    at_ = 0;
    ++iteration_;
  }
  at_ = 0;
}

}  // namespace rehearse::runtime
