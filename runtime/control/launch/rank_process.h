// A process that the launcher starts: its variables, its standard error as a pipe, the line to its
// agent.
#pragma once
#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>

#include "runtime/control/net/secret.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

struct RankProcess {
  pid_t pid = -1;
  int rank = -1;   // -1: it stands by
  Fd errors = {};  // its standard error; a pipe for rank 0 too, so that errors are shown once
  Fd agent = {};   // the line to its agent; empty: it has none
  std::string text = {};           // what it has written and nobody was shown yet
  std::optional<int> status = {};  // exit status, 128 + n after a signal; none: it has not ended
  bool waiting = false;            // for its next assignment
  bool ready = false;              // it stands by, and can become a rank at once
  bool killed = false;             // by the launcher, because it did not end by itself
};

/// What a rank does, in a process of its own; returns its exit status.
using RankWork = std::function<int()>;

struct RankStart {
  const RankWork& work;
  int rank = 0, world_size = 1;
  int listener = -1;
  Secret secret = {};      // of the run
  bool agent = false;      // it gets the line, and may be another rank later
  bool stands_by = false;  // it waits for an assignment; implies `agent`
  sigset_t signals = {};   // its signal mask
};

/// Starts a process: a process group of its own, which ends when the launcher dies. It is a fork of
/// this one, so it need not load and initialise LibTorch again; of everything else it has what a
/// program has that was executed anew: its own variables, no descriptor that is marked
/// close-on-exec. Throws BackendError when it cannot be started.
RankProcess start_process(const RankStart& start);

/// Names this process "rehearse r2" for `ps` and `top`; "rehearse spare" without a rank (-1).
void name_process(int rank);

}  // namespace rehearse::runtime
