// Writes a trace as Chrome/Perfetto JSON (Trace Event Format, Google 2016), for ui.perfetto.dev: a
// process for each rank, a thread for each lane, in their order; an op is a complete event (ph X)
// whose name groups ops of a kind, the rest stands in its args. Arrows (ph s, t, f) lead from a
// send to its receive, through the members of a collective, and from an op to those of other lanes
// that wait for it. Time begins with the first op. docs/report.md lists names and args.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/execution/trace.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

struct TraceSelection {
  std::vector<Id> ranks = {};          // empty: all
  int first_step = 0, last_step = -1;  // inclusive; last -1: no end
};

class ChromeTrace : public TraceSink {
 public:
  /// Opens the file. `model` names segments. Throws BackendError when the file cannot be written.
  ChromeTrace(const std::string& path, const link::LinkedProgram& linked,
              const model::ModelSpec& model, TraceSelection selection = {});
  /// What follows is of another program of the same ranks, on lanes of its own that begin with
  /// `label`: the migration between two plans, and the plan after it. Flushes.
  void section(const link::LinkedProgram& linked, const std::string& label);
  /// Writes what was recorded of this section, all at once, for arrows have two ends; its program
  /// may go then.
  void flush();
  ~ChromeTrace() override;  // closes; errors are lost here, so call close()
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
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
