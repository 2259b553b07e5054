// Writes the trace of a run to a file: the steps under each plan and the migrations between plans,
// on one time axis. Every rank has a TraceFile; only rank 0's writes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/execution/trace/chrome_trace.h"
#include "runtime/control/control.h"
#include "runtime/executor/executor.h"

namespace rehearse::runtime {

class TraceFile {
 public:
  /// `path`: of the Chrome trace; empty: no file. `sink`: gets the first section only; null: none.
  TraceFile(std::string path, const model::ModelSpec& model, execution::TraceSink* sink,
            Control& control);
  /// Adds a section: the stamps of all ranks' executors. Every rank calls it. `label`: added to the
  /// names of the section's lanes; empty for the first plan.
  void add(const link::LinkedProgram& linked, Executor& executor, const std::string& label);
  /// Throws BackendError when the file could not be written.
  void close();

 private:
  std::string path_;
  const model::ModelSpec& model_;
  execution::TraceSink* sink_;
  Control& control_;
  std::unique_ptr<execution::ChromeTrace> chrome_ = {};
  int sections_ = 0;
  std::int64_t origin_ = 0;  // nanoseconds of rank 0's clock; 0: not known yet
};

}  // namespace rehearse::runtime
