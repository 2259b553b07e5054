// Answers to a program in which other things run too, such as a Python interpreter: each is worked
// out in a child process, so that a crash does not end the program, threads of the program do not
// matter, and the work can be ended at any time. The Python package is made of them.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "study/load.h"
#include "study/long_runs/goodput_rows.h"
#include "study/planning/decision.h"
#include "study/prediction/study.h"

namespace rehearse::study {

/// What `work` returns in a child process. `check` is called here about ten times a second; what it
/// throws ends the work. Errors of `work` are thrown here. Without SimGrid, this process works.
std::string in_child(const std::function<std::string()>& work, const std::function<void()>& check);

/// The options of rehearse.h. Throws InputError.
StudyOptions study_options(const Options& options);

/// What `rehearse simulate --json` prints of the job, but for the version and the command line. A
/// plan's rehearsal is not written.
nlohmann::ordered_json simulate_json(const JobSource& source, const StudyOptions& options);
/// A row for each method, in their order: `method`, and either `result`, as simulate_json, or
/// `refused`.
nlohmann::ordered_json compare_json(const JobSource& source, const std::string& methods, bool fit,
                                    const StudyOptions& options);
/// What `rehearse compare --duration --json` prints, but for the version and the command line.
/// `duration`: as in 54d. Throws InputError.
nlohmann::ordered_json goodput_json(const JobSource& source, const std::string& duration,
                                    const LongRunChoices& choices, const StudyOptions& options);
/// What `rehearse plan --json` prints, but for the version and the command line; with `toml`, the
/// text of the plan file.
nlohmann::ordered_json plan_json(const JobSource& source, PlanFlags flags);

}  // namespace rehearse::study
