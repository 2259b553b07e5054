// `rehearse simulate --duration` and `rehearse compare --duration`: a job over weeks in which
// things break.
#pragma once
#include <string>

#include "cli/commands/study_options.h"
#include "cli/console/context.h"

namespace rehearse::cli {

struct LongRunFlags {
  std::string duration = {};                   // empty: a step is predicted, no long run
  std::string recovery = {}, checkpoint = {};  // of compare: comma-separated; empty: the job's
};

/// Adds --duration.
Option add_duration(const Command& command, std::string& duration);
/// "54d" of --duration. Throws InputError.
Seconds parse_duration(const std::string& text);

int run_long(const Context& context, const StudyFlags& flags, const LongRunFlags& how);
/// One row for each policy with each kind of checkpoint.
int compare_long(const Context& context, const StudyFlags& flags, const LongRunFlags& how);

}  // namespace rehearse::cli
