// The training part of a run: steps, and the checkpoints between them. It knows nothing of
// failures; the walk (walk.cpp) says until when the run trains, and where it goes back to.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/goodput/setting.h"

namespace rehearse::goodput {

/// A place to which a run can go back.
struct Point {
  std::int64_t steps = 0;
  Ticks value = 0;     // what its steps take in the undisturbed run
  Ticks training = 0;  // what they took
};

class Progress {
 public:
  explicit Progress(const Setting& setting)
      : setting_(setting), step_(setting.step), worth_(step_) {}

  /// From now on a step takes so long, and is worth so much of an undisturbed one.
  void pace(Ticks step, Ticks worth);
  /// From now on a disk takes so many times as long to write.
  void drag(double factor) { drag_ = factor; }
  /// Trains, and writes checkpoints, from `now` to `until`.
  void train(Ticks now, Ticks until);
  /// A disk is full from `now` to `until`: no checkpoint is complete before, and steps that wait
  /// for one to be written wait so long.
  void block(Ticks now, Ticks until);

  /// The newest point that no failure so far has destroyed, seen at time `now`.
  Point committed(Ticks now);
  /// A failure: a checkpoint that is being written is lost.
  void abort_checkpoint(Ticks now);
  /// The newest checkpoint is destroyed: the one before it counts.
  void spoil(Ticks now);
  /// What some nodes alone held is destroyed: the newest whole checkpoint counts.
  void lose_parts(Ticks now);
  /// How many checkpoints are complete. Changes when nodes hold new parts.
  std::int64_t complete(Ticks now);

  /// Goes back to a checkpoint: all later training is lost.
  void go_back(const Point& point);
  /// Loses the step in flight only.
  void drop_step();

  std::int64_t steps() const { return steps_; }
  std::int64_t lost_steps() const { return lost_steps_; }
  std::int64_t written() const { return written_; }
  Ticks rework() const { return rework_; }
  Ticks stalled() const { return stalled_; }
  /// Time spent on steps that count, with the one in flight; and what they are worth.
  Ticks training() const { return training_; }
  Ticks worth() const;

 private:
  struct Snapshot {
    Point point = {};
    Ticks durable = 0;
    std::int64_t number = 0;
  };
  void settle(Ticks now);
  void settle_whole(Ticks now);
  void begin_stall(Ticks now);
  Ticks dragged(Ticks t) const;
  /// Whether steps wait until a disk has the checkpoint.
  bool waits_for_disk() const {
    return setting_.checkpoint.on_disk && setting_.checkpoint.persist == 0;
  }

  const Setting& setting_;
  Ticks step_, worth_;  // of one step
  double drag_ = 1;
  std::int64_t steps_ = 0, lost_steps_ = 0, since_ = 0, written_ = 0, complete_ = 0;
  Ticks value_ = 0, training_ = 0, partial_ = 0, rework_ = 0, stalled_ = 0, blocked_ = 0;
  std::optional<Ticks> stall_end_ = {};
  std::optional<Snapshot> flying_ = {}, flying_whole_ = {};
  Point committed_ = {}, previous_committed_ = {}, whole_ = {};
};

}  // namespace rehearse::goodput
