#include "engine/goodput/progress.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace rehearse::goodput {
namespace {

Ticks after(Ticks start, Ticks time) {
  return start > std::numeric_limits<Ticks>::max() - time ? std::numeric_limits<Ticks>::max()
                                                          : start + time;
}

}  // namespace

void Progress::pace(Ticks step, Ticks worth) {
  assert(step >= worth && step > 0);
  if (step == step_ && worth == worth_) return;
  // The part of a step that is done at another pace is worth nothing: less than one step.
  partial_ = 0;
  step_ = step;
  worth_ = worth;
}

void Progress::settle(Ticks now) {
  settle_whole(now);
  if (!flying_ || flying_->durable > now) return;
  previous_committed_ = committed_;
  committed_ = flying_->point;
  const CheckpointPrices& prices = setting_.checkpoint;
  const bool whole =
      prices.group == 0 || (prices.whole_every > 0 && flying_->number % prices.whole_every == 0);
  if (whole && !flying_whole_) {
    flying_whole_ = flying_;
    flying_whole_->durable += prices.persist_whole;
    settle_whole(now);
  }
  ++complete_;
  flying_.reset();
}

void Progress::settle_whole(Ticks now) {
  if (!flying_whole_ || flying_whole_->durable > now) return;
  whole_ = flying_whole_->point;
  flying_whole_.reset();
}

Ticks Progress::dragged(Ticks t) const {
  return setting_.checkpoint.on_disk
             ? static_cast<Ticks>(std::min(1e18, static_cast<double>(t) * drag_))
             : t;
}

void Progress::begin_stall(Ticks now) {
  // One checkpoint at a time: this one waits for the last.
  const Ticks wait = flying_ ? std::max<Ticks>(0, flying_->durable - now) : 0;
  // An asynchronous checkpoint stalls only for the copy; the write comes later.
  const Ticks stall = setting_.checkpoint.stall;
  stall_end_ =
      waits_for_disk() ? after(std::max(now + wait, blocked_), dragged(stall)) : now + wait + stall;
}

void Progress::block(Ticks now, Ticks until) {
  const Ticks longer = until - std::max(now, std::min(until, blocked_));
  if (stall_end_ && waits_for_disk()) stall_end_ = after(*stall_end_, longer);
  blocked_ = std::max(blocked_, until);
}

void Progress::train(Ticks now, Ticks until) {
  while (now < until) {
    if (stall_end_) {
      const Ticks end = std::min(until, *stall_end_);
      stalled_ += end - now;
      now = end;
      if (now < *stall_end_) return;
      settle(now);
      stall_end_.reset();
      since_ = 0;
      ++written_;
      flying_ = {.point = {steps_, value_, training_},
                 .durable = std::max(blocked_, now + dragged(setting_.checkpoint.persist)),
                 .number = written_};
      continue;
    }
    // Steps until the next checkpoint, or until the end.
    const Ticks room = until - now + partial_;
    const std::int64_t fit = room / step_;
    const std::int64_t left = setting_.save_every > 0 ? setting_.save_every - since_ : fit + 1;
    const std::int64_t done = std::min(fit, left);
    const Ticks used = done < left ? until - now : done * step_ - partial_;
    steps_ += done;
    since_ += done;
    value_ += done * worth_;
    training_ += used;
    partial_ = done < left ? room - done * step_ : 0;
    now += used;
    if (done == left) begin_stall(now);
  }
}

Ticks Progress::worth() const {
  const auto part = static_cast<Ticks>(static_cast<__int128>(partial_) * worth_ / step_);
  return value_ + part;
}

Point Progress::committed(Ticks now) {
  settle(now);
  return committed_;
}
std::int64_t Progress::complete(Ticks now) {
  settle(now);
  return complete_;
}
void Progress::abort_checkpoint(Ticks now) {
  settle(now);
  flying_.reset();
  flying_whole_.reset();
}
void Progress::spoil(Ticks now) {
  settle(now);
  committed_ = previous_committed_;
  if (whole_.steps > committed_.steps) whole_ = committed_;
}
void Progress::lose_parts(Ticks now) {
  settle(now);
  if (flying_ && setting_.checkpoint.group > 0) flying_.reset();
  committed_ = previous_committed_ = whole_;
}

void Progress::go_back(const Point& point) {
  assert(point.steps <= steps_ && point.training <= training_);
  rework_ += training_ - point.training;
  lost_steps_ += steps_ - point.steps;
  steps_ = point.steps;
  value_ = point.value;
  training_ = point.training;
  partial_ = 0;
  since_ = 0;
  stall_end_.reset();
  flying_.reset();
  flying_whole_.reset();
  // A later checkpoint may hold what is given up here.
  for (Point* p : {&committed_, &previous_committed_, &whole_})
    if (p->steps > point.steps) *p = point;
}

void Progress::drop_step() {
  rework_ += partial_;
  training_ -= partial_;
  partial_ = 0;
  stall_end_.reset();
  if (setting_.save_every > 0) since_ = std::min(since_, setting_.save_every);
}

}  // namespace rehearse::goodput
