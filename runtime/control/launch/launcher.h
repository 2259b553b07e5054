// `--nproc N`: starts N local ranks with torchrun's variables and watches them. The
// launcher listens on a free port itself and rank 0 inherits the socket, so no port is guessed.
// Ranks are killed when the launcher dies (PR_SET_PDEATHSIG).
//
// With `LaunchOptions::recover`, a failure need not end the run: the processes that are left wait
// (runtime/control/membership/agent.h), and each becomes a rank of the next start.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "runtime/control/launch/rank_process.h"

namespace rehearse::runtime {

/// How a start of ranks ended.
struct Launched {
  int status = 0;              // exit status of the run
  int ranks = 0;               // of this start; 0: there was none yet
  int recoveries = 0;          // elastic: of the run so far
  std::vector<int> died = {};  // ranks that a signal from elsewhere ended
  std::vector<int> hung = {};  // ranks that made no progress or were silent: the cause of the end
  int standing_by = 0;         // processes that stand by and can become ranks
  bool interrupted = false;    // by a signal to the launcher
  bool drained = false;        // because a process that stands by can join, or of `rebalanced`
  /// Drained: the ranks should go on with other shares of the batch, and why.
  struct Rebalance {
    std::string why = {};
    std::vector<int> shares = {};
  };
  std::optional<Rebalance> rebalanced = {};
};

/// The next start of a run.
struct NextStart {
  int ranks = 1;
  bool anew = false;              // all processes end and others start in their places
  std::vector<int> leaving = {};  // ranks that are left but have no rank now: they stand by
  /// Processes to start that stand by and, when one is ready, drain the run (Launched::drained).
  int joining = 0;
  Seconds joining_after = {};
  std::string resume_from = {};       // as Assignment::resume_from
  std::vector<std::string> set = {};  // as Assignment::set
  bool first_start = false;           // as Assignment::first
  // The part of this launcher.
  int first = 0;             // the lowest rank here
  int here = -1;             // ranks here; -1: all
  std::string address = {};  // of rank 0's node; empty: this one
  std::uint16_t port = 0;    // where rank 0 listens; 0: here
  int number = 0;            // as launchers on other nodes count starts; 0: no others
};

/// A run on nodes that come and go, each with a launcher (runtime/control/membership/rendezvous.h).
struct ElasticOptions {
  std::string folder = {};         // that all launchers share
  int least = 1, most = 1;         // nodes
  Seconds silence = Seconds(5);    // a launcher that is silent for so long is dead
  Seconds patience = Seconds(60);  // for as many nodes as are needed
  std::string interface = {};      // as in address_for_other_hosts
};

struct LaunchOptions {
  int nproc = 1;
  Seconds grace = Seconds(10);  // from the first failure to SIGKILL for the other ranks
  int spares = 0;               // processes that stand by from the beginning
  std::optional<ElasticOptions> elastic = {};
  /// Called when a start has failed or drained. Nothing: the run ends. Empty: every end is the
  /// last.
  std::function<std::optional<NextStart>(const Launched&)> recover = {};
  /// Called when the first rank of a later start is about to run its first step, `down_s` after
  /// the failure (or after the processes had drained).
  std::function<void(std::int64_t step, double down_s)> began = {};
};

/// Runs `work` as N ranks, each a process of its own (runtime/control/launch/rank_process.h), and
/// waits for them. Call it before the process has threads or has used a GPU: a fork can use
/// neither.
/// - Output: standard error of rank k > 0 is passed on line by line after "[rank k] "; its standard
///   output is dropped. A line that begins with "rehearse: " is an error and is shown once, also
///   when several ranks write it.
/// - Signals: the first SIGINT or SIGTERM goes to every rank. Another one, `second_request_after`
///   or later, kills all ranks.
/// - Exit status after signal n: 128 + n when a rank ended with that or a second request came,
///   whatever other ranks report.
/// - Exit status otherwise: 0 when all ranks returned 0, else the largest below 128, else the
///   largest. A rank killed by a signal that the launcher did not get counts as 1.
/// After a failure or a drain with `recover`: the processes that are left keep their ranks when the
/// next start has as many ranks, and are numbered in their order otherwise. Processes that stand by
/// take the other places, then new ones. Those that are too many stand by.
/// With `elastic`: as many ranks as `recover` chooses for the nodes that are there, of which this
/// launcher starts at most nproc. `recover` is called by one launcher, also for the first start.
/// Throws InputError when nproc < 1, BackendError when a rank cannot be started. An error that
/// `recover` throws ends all processes.
Launched launch(const RankWork& work, const LaunchOptions& options);

/// True in a process that `launch` started.
bool launched();

}  // namespace rehearse::runtime
