// Runs a function in N processes, as the ranks of one run, and returns how each of them ended. For
// tests that stop or kill ranks; processes.h has a simpler version.
#pragma once
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/launch/environment.h"

namespace rehearse::runtime {

struct Ended {
  int status = 0;         // exit status; 128 + n after signal n
  std::string text = {};  // what the rank returned, or the message of its exception
};

struct RunOptions {
  int hostage = -1;    // a rank that is killed once all others have ended; -1: none
  int absent = -1;     // a rank that is never started; -1: none
  double pause = 0;    // seconds for which all ranks are stopped, half a second after the start
  double limit = 600;  // seconds after which a process is killed (status 142)
};

/// Runs `body` in each process. The text of a rank is what `body` returns; if `body` throws, it is
/// the message of the exception, and the exit status is 1.
std::vector<Ended> run_ranks(int n, const std::function<std::string(const Environment&)>& body,
                             const RunOptions& options = {});

/// For ranks of which none is silent: timeouts that no busy machine reaches.
ControlOptions patient();
/// Short timeouts, after which a silent or stuck rank is found. A busy machine may reach them too.
ControlOptions impatient();

/// Ranks 0 to n - 1.
inline std::vector<Id> all_ranks(int n) {
  std::vector<Id> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace rehearse::runtime
