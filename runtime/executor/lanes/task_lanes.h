// The lanes of a role as a list of what each has to do, and what each of its ops waits for.
#pragma once
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/program/program.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// Whether a part of an op is the host's own: a pause, or writing a checkpoint.
bool on_host(const program::Work& work);

struct Task {
  Id op = none;
  int shift = 0;
  std::vector<link::Wait> waits = {};
  bool meets = false;     // it meets other ranks on a channel, and is issued in its turn
  bool answers = false;   // what it returns may end the run, so the lane waits for its end
  bool host = false;      // on_host of its work
  bool computes = false;  // its time is counted (computed_seconds)
  bool tells = false;     // Hooks::stepped needs its result (the gradients' norm) and waits for it
};
struct TaskLane {
  std::string name = {};
  program::Order order = program::Order::in_order;
  std::vector<Task> tasks = {};
  LaneProgress* progress = nullptr;  // may be null
};

/// The lanes of a role, with the waits of the program. Each op also waits for every op of its own
/// rank that has a data hazard with it and must precede it. The simulator assumes that all members
/// of a rendezvous end together; on real ranks one member may continue while another still reads.
std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id role);
/// Only the ops marked in `wanted`, for a single step. An op waits for the wanted ops that precede
/// it within the step, directly or through ops that are not wanted. Lags and shifts are dropped.
std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id role,
                               const std::vector<bool>& wanted);

}  // namespace rehearse::runtime
