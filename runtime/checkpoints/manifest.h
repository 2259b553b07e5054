// The manifest of a checkpoint: what was saved, at which step, in which files. It is JSON whose
// last key is a checksum of every byte before it, and it names the length and checksum of every
// shard, so that a changed byte anywhere in the folder is noticed before anything is made of it.
// Needs no tensors.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/program/program.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/safetensors.h"

namespace rehearse::runtime {

/// Version of the folder's layout; another one is refused. 1 had no checksum of the manifest.
inline constexpr int checkpoint_version = 2;
/// Steps beyond this do not fit beside an op in a lane's progress counter
/// (runtime/control/control.h).
inline constexpr std::int64_t most_steps = std::int64_t{1} << 37;

/// Which of a run's plans was in force: a run that goes on must know whether it has been placed
/// anew.
struct PlanRecord {
  int placements = 0;
  std::string plan = {};  // as a plan file; empty: the job's
};

struct ShardRecord {
  std::string file = {};  // in the manifest's folder
  FileSum sum = {};
  std::vector<tensors::PartKey> parts = {};
};

struct Manifest {
  std::int64_t step = 0, skipped_updates = 0;
  /// By rank: the last step that a free-running rank has counted itself; nothing for the others.
  std::vector<std::optional<std::int64_t>> own_steps = {};
  std::string method = {}, model = {};
  std::vector<program::Axis> mesh = {};
  int world_size = 1;
  std::uint64_t program_hash = 0, seed = 1;
  int global_batch = 1, seq_len = 1;
  PlanRecord record = {};
  std::vector<ShardRecord> shards = {};
};

/// Name of the shard of a rank.
std::string shard_name(Id rank);
inline constexpr const char* manifest_name = "manifest.json";

/// With its checksum.
std::string to_text(const Manifest& manifest);

/// The inverse. Throws InputError that names `path` when the text is damaged, of another version,
/// or says what cannot be.
Manifest parse_manifest(const std::string& text, const std::string& path);
/// The same of a text whose checksum is not looked at: for tests that change values.
Manifest parse_manifest_content(std::string_view text, const std::string& path);

/// The manifest in the folder of a checkpoint. Throws InputError that names the file.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace rehearse::runtime
