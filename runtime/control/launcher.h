// `--nproc N`: starts N local ranks of this program with torchrun's variables and looks after them.
// The launcher binds the master port itself (any free one) and rank 0 inherits the listening
// socket, so no port is ever guessed. Ranks die with the launcher (PR_SET_PDEATHSIG).
#pragma once
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace rehearse::runtime {

struct LaunchOptions {
  int nproc = 1;
  Seconds grace = Seconds(10);  // between the first failure and SIGKILL
};

/// Runs `arguments` (the program, found as execvp does, then its arguments without --nproc) as N
/// ranks and waits for them. Call it before there are threads. Standard error of ranks above 0 is
/// passed on line by line with "[rank k] " in front, their standard output is dropped. A line that
/// begins with "rehearse: " is an error: it is shown once, however many ranks say it. The first
/// SIGINT or SIGTERM goes to every rank; one more, `second_request_after` or later, is SIGKILL for
/// all. Returns the exit status: 128 + n when signal n ended the ranks as asked, whatever they said
/// of each other; 0 when all ranks returned 0, else the gravest: the largest below 128, else 128 +
/// n. A rank that a signal ended for which nobody asked the launcher counts as 1. Throws
/// BackendError when ranks cannot be started.
int launch(const std::vector<std::string>& arguments, const LaunchOptions& options);

/// True in a process that `launch` started.
bool launched();

}  // namespace rehearse::runtime
