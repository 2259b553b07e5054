// Writes a trace as Chrome/Perfetto JSON (Trace Event Format, Google 2016): one complete event (ph
// X) per op, pid = rank, tid = lane, name = the op's text, cat = its work kind, microseconds. Open
// it in ui.perfetto.dev. Streams: memory does not grow with the trace.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/link.h"
#include "engine/trace.h"

namespace rehearse {

struct TraceSelection {
  std::vector<Id> ranks = {};          // empty: all
  int first_step = 0, last_step = -1;  // inclusive; last -1: no end
};

class ChromeTrace : public TraceSink {
 public:
  /// Opens the file and writes names of processes and threads. Throws BackendError when it cannot.
  ChromeTrace(const std::string& path, const LinkedProgram& linked, TraceSelection selection = {});
  /// What follows is of another program of the same ranks, on lanes of its own that begin with
  /// `label`: the migration between two plans, and the plan after it.
  void section(const LinkedProgram& linked, const std::string& label);
  ~ChromeTrace() override;  // closes; errors are lost here, so call close()
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  /// Finishes the JSON. Throws BackendError when anything could not be written.
  void close() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "compute", "kernel", "update", "collective", "send", "recv", "put", "take".
const char* kind_of(const Work& work);
bool communicates(const Work& work);

}  // namespace rehearse
