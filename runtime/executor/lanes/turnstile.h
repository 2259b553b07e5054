// The one order in which a rank issues the ops that meet other ranks. Devices run such ops of
// several lanes one after the other when they lack room for all, so ranks that issue them in
// different orders can wait for each other for ever. `link::OrderedProgram::order` is the same for
// all ranks and comes after all waits, so issuing in its order cannot deadlock.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::runtime {

/// Whether an op meets other ranks on a channel, with whom it must agree on the order.
bool meets(const program::Work& work);

/// An op in its turn: in macro-iteration i it serves step i - offset.
struct Turn {
  Id op = none;
  int offset = 0;
};
/// The ops of a role that meet other ranks, in the program's order.
std::vector<Turn> turns_of(const link::OrderedProgram& linked, Id role);
/// Only those marked in `wanted`, for a single step.
std::vector<Turn> turns_of(const link::OrderedProgram& linked, Id role,
                           const std::vector<bool>& wanted);

class Turnstile {
 public:
  /// Without turns it is always open.
  explicit Turnstile(std::vector<Turn> turns) : turns_(std::move(turns)) {}
  /// A run of steps [first, end) begins.
  void begin_run(std::int64_t first, std::int64_t end);
  /// The run has no step from `end` on: their turns are skipped.
  void lower_end(std::int64_t end);
  /// Blocks until it is the turn of this op and step. False: the run ends before the step.
  bool enter(Id op, std::int64_t step);
  /// The op has been issued.
  void leave();

 private:
  void skip_what_does_not_run();

  std::vector<Turn> turns_;
  std::size_t at_ = 0;          // whose turn it is, in
  std::int64_t iteration_ = 0;  // this macro-iteration
  std::int64_t first_ = 0, end_ = 0;
  int max_offset_ = 0;
  std::mutex lock_;
  std::condition_variable moved_;
};

}  // namespace rehearse::runtime
