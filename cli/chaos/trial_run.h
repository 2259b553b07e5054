// Runs one trial: the run, what is done to it from outside, and where the kind asks for it a second
// run that goes on.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/chaos/mishap.h"
#include "cli/chaos/run_command.h"

namespace rehearse::cli {

/// What a run left behind.
struct Ended {
  std::optional<int> status = {};  // nothing: it still ran when its time was over
  double wall_s = 0;
  std::string said = {};
  std::set<int> blamed = {};
  bool orphans = false;  // processes of it were still there seconds after its end
};

struct TrialEnd {
  Ended first = {};
  std::optional<Ended> second = {};  // the run that goes on after one that ended
  bool struck = true;                // whether the mishap has come
  std::string out = {};              // train.out
  int recoveries = 0;
};

/// Runs `command` and waits for at most `limit_s`. `folder`: where its output goes, and by which
/// its processes are known. Kills what is left.
Ended run_and_watch(const Words& command, const std::string& folder, double limit_s);

/// How long an undisturbed or disturbed run of the subject may take.
double time_limit(const TrialJob& subject, const Reference& reference);

/// The undisturbed run; on a network or with --nproc. Throws InputError when it fails;
/// after a signal to this process it says nothing.
Reference run_reference(const TrialJob& subject, const std::string& folder, bool network);

TrialEnd run_trial(Mishap kind, const Draws& draws, const TrialJob& subject,
                   const Reference& reference, const std::string& folder);

}  // namespace rehearse::cli
