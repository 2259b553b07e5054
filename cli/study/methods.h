// The --methods of `compare`.
#pragma once
#include <string>
#include <vector>

#include "engine/job/job.h"

namespace rehearse::cli {

/// One row: a method, and keys of the job that hold for it alone.
struct MethodChoice {
  std::string label = {};  // as written
  std::string method = {};
  std::vector<std::string> set = {};  // "method.pp=2"
};

/// "ddp,1f1b@pp=2,micro_batches=8,zero3": a part with = belongs to the method before it, and so do
/// the axes after order=; commas in brackets or quotes belong to their value. A key without a dot
/// is of [method]. "all": every method. "plan": the job's own plan. Throws InputError, with the
/// nearest name for an unknown method.
std::vector<MethodChoice> parse_methods(const std::string& list);

/// --set for a row. What the job file says about the shape of its own method (mesh, micro-batches,
/// ...) is forgotten where the row's method is another one, so that each gets its own defaults;
/// the command line's --set and the row's own keys hold. Of a job with a plan, other methods get
/// the plan's work (batch, precision, optimizer) and devices.
std::vector<std::string> overrides_for(const MethodChoice& choice, const job::Job& job,
                                       const std::vector<std::string>& set);

}  // namespace rehearse::cli
