// The command lines of a campaign's runs, and what the undisturbed run of a method is known by.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/chaos/mishap.h"
#include "cli/console/context.h"
#include "study/methods.h"

namespace rehearse::cli {

/// A method of the campaign, ready to run.
struct TrialJob {
  std::string job = {}, label = {};
  std::vector<std::string> set = {};  // --set of each of its runs
  Shape shape = {};
  int restarts = 0;
  std::int64_t check_every = 0;  // for a trial that needs checks; 0: the job states it
  double timeout_s = 0;
  /// Whether a run that recovers ends with the same bits. If not: `rule` says how it is judged.
  bool exact = true;
  std::string rule = {};
};

/// How an undisturbed run has ended.
struct Reference {
  std::map<std::string, std::string> state = {};  // files of the last checkpoint
  double loss = 0;                                // mean of the last steps
  double wall_s = 0, steps_s = 0;                 // in all; from the first to the last step
  std::int64_t checkpoint_bytes = 0;
};

/// Throws InputError for a job that cannot run so.
TrialJob trial_job_for(const Context& context, const std::string& job,
                       const study::MethodChoice& choice, int nproc);

using Words = std::vector<std::string>;

/// `rehearse train` with --nproc, writing to `out`. `more`: further words.
Words train_command(const TrialJob& subject, const std::string& out, const Words& more);
/// The same on a file system with so many bytes, which is gone at the end.
Words on_small_disk(const Words& command, const std::string& out, std::int64_t bytes);
/// The same on nodes of a testbed, one rank on each. `faults`: options of tools/testbed. `folder`:
/// for the platform's file and the log.
Words on_network(const TrialJob& subject, const std::string& folder, const std::string& out,
                 const Words& faults, const Words& more);

/// Why this machine cannot build a network (with packet filters); empty: it can.
std::string why_no_network(const std::string& folder);
/// Why it cannot make a small file system; empty: it can.
std::string why_no_small_disk();

}  // namespace rehearse::cli
