// The trace of a run as a file: the steps of each plan and the migrations between them on one time
// axis. Every rank has one; rank 0 writes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/execution/chrome_trace.h"
#include "runtime/control/control.h"
#include "runtime/execution/executor.h"

namespace rehearse {

class TraceFile {
 public:
  /// `path` may be empty: then only `sink` gets the first section. `sink` may be null.
  TraceFile(std::string path, const ModelSpec& model, TraceSink* sink, Control& control);
  /// Gathers what an executor stamped; every rank calls it. `label`: of its lanes; empty for the
  /// first plan's.
  void add(const LinkedProgram& linked, Executor& executor, const std::string& label);
  /// Throws BackendError when the file could not be written.
  void close();

 private:
  std::string path_;
  const ModelSpec& model_;
  TraceSink* sink_;
  Control& control_;
  std::unique_ptr<ChromeTrace> chrome_ = {};
  int sections_ = 0;
  std::int64_t origin_ = 0;  // nanoseconds of rank 0's clock; 0: not known yet
};

}  // namespace rehearse
