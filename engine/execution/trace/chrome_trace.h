// Writes a trace as Chrome/Perfetto JSON (Trace Event Format, Google 2016), for ui.perfetto.dev.
// Each rank is a process and each lane a thread. An op is a complete event (ph X): ops of one kind
// share a name, details are in the args. Arrows (ph s, t, f) lead from a send to its receive,
// through the members of a collective, and from an op to the ops of other lanes that wait for it.
// Time 0 is the start of the first op. docs/report.md lists names and args.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

struct TraceSelection {
  std::vector<Id> ranks = {};          // empty: all
  int first_step = 0, last_step = -1;  // inclusive; last_step -1: to the end
  /// Rank and op of what is on the critical path; such ops get the arg "critical".
  std::set<std::pair<Id, Id>> critical = {};
};

class ChromeTrace : public TraceSink {
 public:
  /// Opens the file. `model` names segments. Throws BackendError when the file cannot be written.
  ChromeTrace(const std::string& path, const link::OrderedProgram& linked,
              const model::ModelSpec& model, TraceSelection selection = {});
  /// Flushes, then starts a section for another program on the same ranks: the migration between
  /// two plans, or the plan after it. The section has its own lanes, named with prefix `label`.
  void section(const link::OrderedProgram& linked, const std::string& label);
  /// Writes all recorded ops of the section; an arrow needs both of its ends. After this call the
  /// section's program may be destroyed.
  void flush();
  ~ChromeTrace() override;  // closes but drops errors, so call close()
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  /// Marks an event from `start` to `end` seconds (infinite: for good) on a track of its own.
  /// Before close().
  void mark(const std::string& name, double start, double end);
  /// Flushes and finishes the JSON. Throws BackendError when anything could not be written.
  void close() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "compute", "kernel", "update", "collective", "send", "recv", "put", "take".
const char* kind_of(const program::Work& work);
bool communicates(const program::Work& work);

}  // namespace rehearse::execution
