// Work in processes of its own: SimGrid simulates once in the life of a process, and a simulation
// that aborts must not take the user's program with it. Each piece of work is a forked child that
// hands back bytes; results come in the order of the work, whatever order the children end in.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace rehearse::sim {

struct ProcessOptions {
  int jobs = 0;        // children at a time; 0: as many as this machine has cores
  double timeout = 0;  // seconds for one child; 0: none
  /// Called in this process after each child, with how many have ended.
  std::function<void(int done)> progress = {};
};

/// work(0), ..., work(count - 1), each in a child. The first child (by number) that fails decides:
/// its InputError, ProgramError or BackendError is thrown here with the same message; anything else
/// (a crash, an abort, the timeout) is a BackendError that says which child, how it ended and the
/// last of what it wrote to standard error. No child outlives the call, or this process.
std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& work,
                                      const ProcessOptions& options = {});

}  // namespace rehearse::sim
