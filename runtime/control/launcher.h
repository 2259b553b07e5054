// `--nproc N`: starts N local ranks of this program with torchrun's variables and watches them. The
// launcher listens on a free port itself and rank 0 inherits the socket, so no port is guessed.
// Ranks are killed when the launcher dies (PR_SET_PDEATHSIG).
#pragma once
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace rehearse::runtime {

struct LaunchOptions {
  int nproc = 1;
  Seconds grace = Seconds(10);  // from the first failure to SIGKILL for the other ranks
};

/// Runs `arguments` (the program, found as execvp does, then its arguments without --nproc) as N
/// ranks and waits for them. Call it before the process has threads.
/// - Output: standard error of rank k > 0 is passed on line by line after "[rank k] "; its standard
///   output is dropped. A line that begins with "rehearse: " is an error and is shown once, also
///   when several ranks write it.
/// - Signals: the first SIGINT or SIGTERM goes to every rank. Another one, `second_request_after`
///   or later, kills all ranks.
/// - Exit status after signal n: 128 + n when a rank ended with that or a second request came,
///   whatever other ranks report.
/// - Exit status otherwise: 0 when all ranks returned 0, else the largest below 128, else the
///   largest. A rank killed by a signal that the launcher did not get counts as 1.
/// Throws InputError when nproc < 1, BackendError when a rank cannot be started.
int launch(const std::vector<std::string>& arguments, const LaunchOptions& options);

/// True in a process that `launch` started.
bool launched();

}  // namespace rehearse::runtime
