// What a training run leaves in train.out: checkpoints, each a folder step-NNNNNNNN, and
// metrics.jsonl, to which it appends a line a step. A folder holds one run: another one is refused,
// and a run that goes on from step k first takes back what was written after it, so that every step
// stands there once.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::runtime {

std::string metrics_path(const std::string& folder);
std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// The complete checkpoints in a folder, the oldest first.
std::vector<std::string> checkpoints_in(const std::string& folder);
/// The newest complete checkpoint in a folder; a path to one is itself. Throws InputError when
/// there is none.
std::string find_checkpoint(const std::string& folder_or_checkpoint);
/// Whether a checkpoint is one of the run in this folder.
bool lies_in(const std::string& checkpoint, const std::string& folder);

/// Throws InputError that says what is there and the ways out, when the folder holds a run.
void check_unused(const std::string& folder);
/// Removes the run in a folder: metrics and checkpoints, nothing else.
void remove_run(const std::string& folder);
/// Takes back what a run wrote after `step` steps: lines of metrics (the file is replaced in one
/// rename), later checkpoints, checkpoints that a kill left half-written.
void rewind_run(const std::string& folder, std::int64_t step);

/// For the refusal of a checkpoint: when that is damaged, which checkpoint before it in its folder
/// is whole, as the end of a sentence; empty when it is not damaged, or none is.
std::string whole_one_before(const std::string& checkpoint);

}  // namespace rehearse::runtime
