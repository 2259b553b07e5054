#include "runtime/executor/trace_file.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/executor/trace_gather.h"

namespace rehearse::runtime {

TraceFile::TraceFile(std::string path, const model::ModelSpec& model, execution::TraceSink* sink,
                     Control& control)
    : path_(std::move(path)), model_(model), sink_(sink), control_(control) {}

void TraceFile::add(const link::LinkedProgram& linked, Executor& executor,
                    const std::string& label) {
  std::vector<execution::TraceSink*> sinks;
  if (control_.environment().rank == 0 && !path_.empty()) {
    if (chrome_ == nullptr)
      chrome_ = std::make_unique<execution::ChromeTrace>(path_, linked, model_);
    else
      chrome_->section(linked, label);
    sinks.push_back(chrome_.get());
  }
  // `sink_` was made for the ops of the first plan, so it gets that plan's trace only.
  if (sink_ != nullptr && sections_ == 0) sinks.push_back(sink_);
  execution::Tee tee(sinks);
  gather_trace(linked, executor, control_, fmt::format("trace {}", sections_++), &tee, origin_);
  if (chrome_ != nullptr) chrome_->flush();
}

void TraceFile::close() {
  if (chrome_ != nullptr) chrome_->close();
}

}  // namespace rehearse::runtime
