// The folder train.out of a training run: checkpoints, each a folder step-NNNNNNNN, and
// metrics.jsonl, one line a step. A folder holds one run; another run is refused. A run that goes
// on from step k first removes what was written after it, so that every step is there once.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rehearse::runtime {

std::string metrics_path(const std::string& folder);
std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// The step in the name of a checkpoint's folder; nothing when it is no such name.
std::optional<std::int64_t> checkpoint_step(const std::string& path);
/// The complete checkpoints in a folder, oldest first.
std::vector<std::string> checkpoints_in(const std::string& folder);
/// The step of the newest passed check of the run in a folder (run.check_every): what was saved
/// after it may hold wrong numbers. Nothing when the run is not checked.
std::optional<std::int64_t> checked_until(const std::string& folder);
/// Why a checkpoint after that step does not count.
inline constexpr const char* not_checked = "saved after the last passed check (run.check_every)";
/// The newest complete checkpoint in a folder that the run's checks cover, or the argument itself
/// if it is a checkpoint. Throws InputError when there is none.
std::string find_checkpoint(const std::string& folder_or_checkpoint);
/// A checkpoint without which a run goes on, and why: "FILE: what is wrong".
struct PassedOver {
  std::int64_t step = 0;
  std::string why = {};
};
std::string describe(const PassedOver& passed);
/// The newest checkpoint that the run's checks cover and whose files all have their checksums;
/// empty: none. Adds newer ones to `passed`.
std::string newest_whole_checkpoint(const std::string& folder, std::vector<PassedOver>& passed);
/// Whether a checkpoint lies in this folder.
bool lies_in(const std::string& checkpoint, const std::string& folder);

/// Throws InputError when the folder holds a run. The error says what is there and which options
/// help.
void check_unused(const std::string& folder);
/// Removes the run in a folder: metrics and checkpoints, nothing else.
void remove_run(const std::string& folder);
/// Removes the checkpoints in a folder but the last two, and the last two whole ones: an
/// incremental one is read together with the last whole one before it.
void keep_newest(const std::string& folder);
/// Removes what a run wrote after `step` steps: later lines of the metrics (the file is replaced by
/// one rename), later checkpoints, and half-written checkpoints. `checked` false: its checks too,
/// because what follows is not checked.
void rewind_run(const std::string& folder, std::int64_t step, bool checked);

/// The end of an error about a damaged checkpoint: the newest undamaged checkpoint before it in its
/// folder. Empty when there is none, or when `checkpoint` is not damaged. Calls `alive`, if there
/// is one, while it reads.
std::string undamaged_checkpoint_before(const std::string& checkpoint,
                                        const std::function<void()>& alive = {});

}  // namespace rehearse::runtime
