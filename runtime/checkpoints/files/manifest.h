// The manifest of a checkpoint: what was saved, at which step, in which files. It is JSON; its last
// key is a checksum of every byte before it. It states the length and checksum of every shard, so a
// changed byte anywhere in the folder is noticed before the content is used. No tensors are needed
// to read it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/program/program.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/files/safetensors.h"

namespace rehearse::runtime {

/// Version of the folder's layout; other versions are refused. Version 1 had no checksum of the
/// manifest.
inline constexpr int checkpoint_version = 2;
/// Largest step: more bits would not fit beside an op in a lane's progress counter
/// (runtime/control/control.h).
inline constexpr std::int64_t most_steps = std::int64_t{1} << 37;

/// The plan in force when the checkpoint was saved. `placements`: how often the run has been placed
/// anew.
struct PlanRecord {
  int placements = 0;
  std::string plan = {};  // text of a plan file; empty: the job's plan
};

/// Of an incremental checkpoint: the whole one, in the same folder, from which it tells what has
/// changed.
struct BaseRecord {
  std::int64_t step = 0;
  std::uint64_t checksum = 0;  // of its manifest
  int bits = 0;                // of quantised differences; 0: all are exact
  double changed = 0;          // part of the state's bytes, by chunks
  /// Largest difference from the state that quantising has made in an element; the same divided by
  /// the largest number of the element's part, at most.
  double error = 0, relative_error = 0;
};

/// The text that a run draws its samples from (runtime/data/data.h).
struct DataRecord {
  std::string tokenizer = {};  // SHA-256 of its file; empty: the folder does not say
  std::uint64_t shards = 0;    // Data::shards_hash

  friend bool operator==(const DataRecord&, const DataRecord&) = default;
};

struct ShardRecord {
  std::string file = {};  // name in the manifest's folder
  FileSum sum = {};
  std::vector<tensors::PartKey> parts = {};
};

struct Manifest {
  std::int64_t step = 0, skipped_updates = 0;
  std::int64_t frozen_at = 0;  // the step since which second moments stand still (method.freeze)
  /// By rank: the next step of a free-running rank, which counts its own steps; nothing for other
  /// ranks.
  std::vector<std::optional<std::int64_t>> own_steps = {};
  std::string method = {}, model = {};
  std::vector<program::Axis> mesh = {};
  int world_size = 1;
  std::uint64_t program_hash = 0, seed = 1;
  int global_batch = 1, seq_len = 1;
  PlanRecord record = {};
  std::optional<DataRecord> data = {};  // none: an older program saved it
  std::optional<BaseRecord> base = {};  // none: the checkpoint is whole
  std::uint64_t checksum = 0;           // of the text, from parse_manifest
  std::vector<ShardRecord> shards = {};
};

/// Name of the shard of a rank.
std::string shard_name(Id rank);
inline constexpr const char* manifest_name = "manifest.json";

/// The manifest's text, with its checksum.
std::string to_text(const Manifest& manifest);

/// The checksum in a text that to_text wrote.
std::uint64_t checksum_in(const std::string& text);

/// The inverse of to_text. Throws InputError that names `path` when the text is damaged, of another
/// version, or has an impossible value.
Manifest parse_manifest(const std::string& text, const std::string& path);
/// The same without checking the checksum, for tests that change values.
Manifest parse_manifest_content(std::string_view text, const std::string& path);

/// The manifest in the folder of a checkpoint. Throws InputError that names the file.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace rehearse::runtime
