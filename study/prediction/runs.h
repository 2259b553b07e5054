// What all runs of a study have in common, and how the dry run and the simulator are told of it.
#pragma once
#include <memory>
#include <vector>

#include "engine/base/errors.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/execution/measure/stopping.h"
#include "engine/execution/trace/chrome_trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "study/prediction/study.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/executor.h"
#endif

namespace rehearse::study {

constexpr int traced_steps = 2;  // of a trace file

/// The runs of one program, one for each seed.
struct Runs {
  const job::Job& job;
  const StudyOptions& options;
  const link::OrderedProgram& linked;
  const costs::Costs& costs;
  const costs::Profile* profile = nullptr;  // that `costs` were made from; null: none
  const std::vector<double>& slow;          // cluster::link_slowdowns
  int seeds = 1;
  execution::Stopping stopping = {};  // when a run is enough
};

/// What differs by chance in the run of seed i.
cluster::Disturber disturber_of(const Runs& runs, int i);
/// Writes options.trace in the run of seed 0: `traced_steps` from step `first` (from 0) on, of all
/// ranks if there are at most 64, or else of the first ranks of each role. Null: other runs write
/// none.
std::unique_ptr<execution::ChromeTrace> trace_writer(const Runs& runs, int first, int i);

#ifdef REHEARSE_HAS_SIM
/// `fidelity`: fluid or chunk.
sim::Fidelity sim_fidelity(Fidelity fidelity);
sim::SimOptions sim_options(const Runs& runs);
#else
InputError needs_sim(Fidelity fidelity);
#endif

}  // namespace rehearse::study
