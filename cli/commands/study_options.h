// The flags that commands which predict share.
#pragma once
#include <string>

#include "cli/console/command.h"
#include "cli/console/teller.h"
#include "study/prediction/study.h"

namespace rehearse::cli {

struct StudyFlags {
  std::string job = {}, fidelity = "fluid", report = {}, output = {};
  std::string precision = "1%";
  int seeds = 5;
  bool timings = false;
};

/// --fidelity, --seeds and --precision.
void add_prediction_flags(const Command& command, StudyFlags& flags);
/// These, the job, and where the results go.
void add_study_flags(const Command& command, StudyFlags& flags);
/// The options of a study. Throws InputError when the precision is not a share from 0% to 100%, or
/// when an output file cannot be written.
study::StudyOptions study_options(const StudyFlags& flags, Teller& teller);
/// Throws InputError when `path` does not end in .html or cannot be written.
void check_report(const std::string& path);

}  // namespace rehearse::cli
