// Runs a function as N real processes of one run and says how each of them ended.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/environment.h"

namespace rehearse::runtime {

struct Ended {
  int status = 0;         // exit status; 128 + n after signal n
  std::string text = {};  // what the rank said, or its exception
  double seconds = 0;     // from the start of all
};

struct RunOptions {
  int hostage = -1;   // a rank that is killed once all others have ended
  int absent = -1;    // a rank that is never started
  double pause = 0;   // all ranks are stopped for so long, half a second after the start
  double limit = 30;  // a process that lives longer is killed (status 142)
};

/// `body` runs in each process and returns what it wants to say; an exception ends it with 1 and is
/// what it says.
std::vector<Ended> run_ranks(int n, const std::function<std::string(const Environment&)>& body,
                             const RunOptions& options = {});

/// Options with which a test finds a culprit soon.
ControlOptions fast();

}  // namespace rehearse::runtime
