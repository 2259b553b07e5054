// One rank of a run with the executor in the test's hands, and what a run's trace must look like.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/disturbance.h"
#include "engine/execution/trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/control/environment.h"
#include "runtime/data/data.h"
#include "runtime/execution/executor.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {

/// What a rank of `train` is made of; slowed as job.disturb says.
struct RankRun {
  RankRun(const job::Job& job, const link::LinkedProgram& linked, const Environment& environment);
  /// Steps [first, last) and nothing else; every rank has ended them when it returns.
  void steps(std::int64_t first, std::int64_t last);

  Data data;
  Control control;
  Network network;
  cluster::Disturber disturber;
  Executor executor;
};

/// A job of gpt-tiny with sequences of 16 over `data`, which evaluates and saves nothing; 4 layers
/// and several buckets.
job::Job conformance_job(plan::Plan plan, const std::string& data, std::int64_t steps);
/// The training shards alone.
void write_training_data(const ScratchFolder& folder);

/// A small plan of a method in two processes, or as few as it can do with.
plan::Plan smallest_plan(const std::string& method);

/// Trains in real processes and returns what rank 0's trace sink was given. Fails the test when a
/// rank fails. `most_steps`: of one rank, where ranks count their own.
std::vector<execution::Interval> trace_of(const job::Job& job, int most_steps);

/// What in a trace of steps [0, steps) contradicts the program: an op of an in-order lane before
/// its predecessor's end, an op before the end of what its `after` list names, an instance that is
/// missing or stands there twice. At most ten lines.
std::vector<std::string> disorder(const link::LinkedProgram& linked,
                                  const std::vector<execution::Interval>& trace, int steps);

}  // namespace rehearse::runtime
