// Counts what a test's own code takes from the heap.
#pragma once
#include <cstdint>
#include <string>

namespace rehearse::runtime {

/// Counts calls of operator new while it exists: those of this program's code and of the standard
/// library, on the thread that made the counter and on threads that began later. LibTorch, plug-ins
/// and older threads, such as the control plane's, are not counted. At most one exists at a time.
class AllocationCounter {
 public:
  /// False: operator new is a sanitizer's, and nothing is counted.
  static bool works();

  AllocationCounter();
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  std::int64_t made() const;
  /// Ends the count. The callers of the last few that were counted, for people.
  std::string latest();
};

}  // namespace rehearse::runtime
