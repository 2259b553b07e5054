// What a run does after a failure. Each policy is one file in policies/: it says with which nodes
// and from which state the run goes on, and how long that takes. It registers under its name in
// the job file. No other file names a policy.
#pragma once
#include <map>
#include <string>

#include "engine/goodput/setting.h"
#include "engine/job/survival.h"

namespace rehearse::goodput {

/// What is left when the failure has been noticed.
struct Situation {
  const Setting& setting;
  int alive_ranks = 0;        // on slots whose node is up
  int empty_slots = 0;        // whose node died and was not replaced
  int spares = 0;             // nodes that stand by
  int whole_replicas = 0;     // data-parallel replicas none of whose processes or nodes were struck
  int standing_replicas = 0;  // those whose nodes are up, or would be if spares took empty slots
  bool corrupt = false;       // the state of all replicas is wrong
  bool parts_lost = false;    // nodes have lost the newest checkpoint

  /// Whether a surviving replica has the state of the last step.
  bool survivors_know() const { return setting.replicated && whole_replicas > 0 && !corrupt; }
  /// Time to read the checkpoint from which the run goes on.
  Ticks load() const {
    return parts_lost ? setting.checkpoint.load_whole : setting.checkpoint.load;
  }
  bool can_run_with(int replicas) const {
    return replicas > 0 && setting.ranks_with(replicas) >= setting.min_ranks &&
           setting.step_with(replicas) > 0;
  }
};

struct Decision {
  bool waits = false;      // until a node returns: with these nodes the run cannot go on
  int spares = 0;          // that take the place of dead nodes now
  int replicas = 0;        // with which the run goes on
  bool survivors = false;  // the state comes from them, and they keep it while the run waits; else
                           // it comes from the newest checkpoint
  Ticks replacing = 0, replanning = 0, restarting = 0;
  Ticks rejoins = 0;  // units: after so long a replica whose nodes are up joins again
};

struct Policy {
  std::string summary = {};
  std::string source = {};  // paper or program
  /// Decides when a failure has been noticed, and again when another one strikes before the run
  /// goes on.
  Decision (*recover)(const Situation&) = nullptr;
  /// Nodes that return join a run that goes on without them, between two steps. Otherwise they
  /// join at the next failure.
  bool grows = false;
  /// A run goes on with the replicas that are left and the whole batch.
  bool shrinks = false;
  /// A replica is a unit of failure: the others go on without its samples, and it joins again.
  bool units = false;
  /// Processes stand by and take the place of dead ones (recovery.takeover).
  bool stands_by = false;
  /// Whether it goes on with fewer replicas (recovery.replan, recovery.min_ranks).
  bool goes_on_with_fewer() const { return shrinks || units; }
};

std::map<job::RecoveryPolicy, Policy>& policies();
const Policy& policy_named(job::RecoveryPolicy name);

struct Register {
  Register(job::RecoveryPolicy name, const Policy& policy);
};

/// All slots filled by spares and all processes started anew, from the newest checkpoint: what
/// `restart` does, and other policies where they cannot do better.
Decision start_anew(const Situation& situation);

}  // namespace rehearse::goodput
