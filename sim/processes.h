// Runs work in forked child processes, for two reasons: SimGrid simulates once in the life of a
// process, and a simulation that aborts must not end the user's program. Each piece of work is a
// child that returns bytes. Results come in the order of the work, in whatever order the children
// end.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace rehearse::sim {

struct ProcessOptions {
  int jobs = 0;        // children that run at a time; 0: as many as this machine has cores
  double timeout = 0;  // seconds for one child; 0: no timeout
  /// Called in this process about ten times a second while children run. What it throws ends the
  /// call, and the children with it.
  std::function<void()> check = {};
  /// Called in this process after each child, with the number of children that have ended.
  std::function<void(int done)> progress = {};
  /// Called in this process with what a child returned, in the order in which children end. Then
  /// in_processes keeps no results.
  std::function<void(int number, const std::string& result)> result = {};
  /// Called instead of throwing, with the failure of a child. The other children go on.
  std::function<void(int number, const std::string& message)> failure = {};
};

/// Runs work(0), ..., work(count - 1), each in a child. Unless options.failure hears of it, when
/// children fail, the failure with the lowest number is reported: an InputError, ProgramError or
/// BackendError is thrown here with the same message. Any other exception, a crash, an abort or the
/// timeout becomes a BackendError; a crash or timeout names the child, how it ended and the end of
/// its standard error. No child outlives the call or this process.
std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& work,
                                      const ProcessOptions& options = {});

}  // namespace rehearse::sim
