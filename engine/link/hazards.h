// What the refs of a role imply: which op must have ended, how many steps ago, before another may
// start. One definition for the pass that adds the waits and for the linker that proves them there.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::link {

enum class HazardKind : std::uint8_t { read_after_write, write_after_read, write_after_write };
/// The instance of `op` that serves step t must start after the instance of `on` that serves step t
/// - lag has ended.
struct Hazard {
  Id op = none, on = none;
  int lag = 0;
  HazardKind kind = HazardKind::read_after_write;
  Id view = none;
};
struct Hazards {
  std::vector<Hazard> list = {};  // grouped by op; what both ops' lane orders anyhow is left out
  int max_lag = 0;                // of all, those left out too
  // [instance]: the ops of a step that write a part of it first, in the order in which they serve
  // the step, and those that use it last. Of different parts these are different ops.
  std::vector<std::vector<Id>> first_writers = {}, finals = {};
  std::vector<std::size_t> instance_base = {};  // [storage] -> its first instance; + index
};

/// Throws ProgramError for a read before any write, for a version that is overwritten before it is
/// read, and for an operand whose layout is not the one last written.
Hazards hazards_of(const program::Program& program, const program::Role& role);
/// Only its `list`, in less time.
std::vector<Hazard> hazard_list(const program::Program& program, const program::Role& role);

/// The ops of a role in the order in which they serve one step: by shift, then by place.
std::vector<Id> step_order(const program::Role& role);

}  // namespace rehearse::link
