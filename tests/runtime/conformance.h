// Helpers for tests that compare real ranks with their program: an executor that a test runs
// itself, small jobs, and a check of a trace against the program.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/disturbance.h"
#include "engine/execution/trace/trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/control/launch/environment.h"
#include "runtime/data/data.h"
#include "runtime/device/load_device.h"
#include "runtime/executor/executor.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {

/// The parts of a rank as `train` builds them. Local ops are slowed down as job.disturb says.
struct RankRun {
  RankRun(const job::Job& job, const link::LinkedProgram& linked, const Environment& environment);
  /// Runs steps [first, last) and nothing else. Returns when every rank has ended them.
  void steps(std::int64_t first, std::int64_t last);

  Data data;
  Control control;
  Network network;
  std::unique_ptr<Device> device;
  cluster::Disturber disturber;
  Executor executor;
};

/// A job over `data` that neither evaluates nor saves: a tiny model with 4 layers, sequences of
/// 16 tokens and several buckets.
job::Job conformance_job(plan::Plan plan, const std::string& data, std::int64_t steps,
                         const std::string& model_name = "gpt-tiny");
/// Writes training shards, and none for validation.
void write_training_data(const ScratchFolder& folder);

/// A plan of a method with two ranks along each axis that it needs: dp for methods without pp and
/// tp.
plan::Plan smallest_plan(const std::string& method);

/// Trains in real processes and returns the intervals that rank 0's trace sink received. Fails the
/// test when a rank fails. `most_steps`: how many steps are traced; a free-running rank may run
/// more steps than the job has.
std::vector<execution::Interval> trace_of(const job::Job& job, int most_steps);

/// What in a trace of steps [0, steps) contradicts the program, in at most ten lines: an op of an
/// in-order lane that starts before its predecessor ends, an op that starts before an op of its
/// `after` list ends, an instance that is missing or appears twice.
std::vector<std::string> disorder(const link::LinkedProgram& linked,
                                  const std::vector<execution::Interval>& trace, int steps);

}  // namespace rehearse::runtime
