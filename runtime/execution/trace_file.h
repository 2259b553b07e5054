// The trace of a run as a file: the steps of each plan and the migrations between them on one time
// axis. Every rank has one; rank 0 writes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/execution/chrome_trace.h"
#include "runtime/control/control.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

class TraceFile {
 public:
  /// `path` may be empty: then only `sink` gets the first section. `sink` may be null.
  TraceFile(std::string path, const model::ModelSpec& model, execution::TraceSink* sink,
            Control& control);
  /// Gathers what an executor stamped; every rank calls it. `label`: of its lanes; empty for the
  /// first plan's.
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
