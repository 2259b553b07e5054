// Parses --methods of `rehearse compare` and makes the --set options of each row.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/job/job.h"

namespace rehearse::study {

/// One row of the comparison: a method, and keys of the job that hold for this row alone.
struct MethodChoice {
  std::string label = {};  // the row's name, as the user wrote it
  std::string method = {};
  std::vector<std::string> set = {};  // "method.pp=2"
};

/// Parses a list such as "ddp,1f1b@pp=2,micro_batches=8,zero3" into three rows. A part with "="
/// belongs to the method before it, and so do the axes after "order=". A comma in brackets or
/// quotes is part of a value. A key without a dot is a key of [method]. "all" means every method,
/// "plan" the job's own plan. Throws InputError, with the nearest name for an unknown method.
std::vector<MethodChoice> parse_methods(const std::string& list);

/// The --set options of a row. If the row's method is not the job's, the keys that shape the job's
/// method (mesh, micro-batches, ...) get their defaults. The command line's --set and the row's own
/// keys always hold. If the job has a plan, a row of another method gets the plan's work (global
/// batch, precision, optimizer) and devices.
std::vector<std::string> overrides_for(const MethodChoice& choice, const job::Job& job,
                                       const std::vector<std::string>& set);

/// What a job states that a row of another method does not keep.
struct StatedMethod {
  std::string name = {};
  std::set<std::string> keys = {};  // of the whole job: "method.pp"
  bool shares_by_speed = false;
};
/// The part of overrides_for that drops keys, for a job without a plan file.
std::vector<std::string> resets_for(const MethodChoice& choice, const StatedMethod& job);

/// The row with changes that make its plan fit into memory (planner::Remedy); nothing: they would
/// make another method of it, change more than the method, or there are none.
std::optional<MethodChoice> with_changes(MethodChoice choice,
                                         const std::vector<std::string>& changes);

/// The row in which faster replicas take more samples (method.shares=speed); nothing if its method
/// cannot, or the job states method.shares.
std::optional<MethodChoice> with_shares_by_speed(MethodChoice choice, const job::Job& job);

}  // namespace rehearse::study
