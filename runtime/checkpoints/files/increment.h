// What an incremental checkpoint holds of a part: the chunks (job::chunk_bytes) that differ from
// the last whole checkpoint, as they are or as quantised differences. In the rank's file:
//
//   KEY          all elements of the part, or those of the changed chunks
//   KEY#chunks   which chunks have changed, rising; absent: all. A part without entries is as it
//                was.
//   KEY#codes    in place of KEY: the differences, as signed whole numbers of 8 or 16 bits
//   KEY#scales   of each changed chunk: what a code is multiplied by; negative: the chunk's codes
//                are the numbers themselves, where these are smaller than the differences
//
// Weights, masters and first moments can be quantised. Second moments stay exact, because a step is
// divided by their root; so does what has another kind, or values that are not finite.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/safetensors.h"

namespace rehearse::runtime {

/// What a rank keeps in memory of its parts of the last whole checkpoint, to compare with: a
/// checksum of each chunk, and the bytes of what will be quantised.
struct IncrementBase {
  struct Part {
    std::vector<std::uint64_t> sums = {};
    std::vector<std::byte> bytes = {};
  };
  std::int64_t step = -1;      // -1: there is none
  std::uint64_t checksum = 0;  // of its manifest; known to the rank that leads
  std::map<tensors::PartKey, Part> parts = {};

  void keep(const tensors::PartKey& key, program::DType dtype, std::span<const std::byte> bytes,
            int bits);
};

/// How much of the parts has changed, and by how much rounding has changed it.
struct Change {
  std::int64_t bytes = 0, changed_bytes = 0;  // of the state
  double error = 0;                           // largest difference from the state
  double relative_error = 0;  // largest one divided by the largest number of its part

  void add(const Change& other);
};

/// Adds to `table` what has changed of a part since `base`, a checkpoint that has this part.
/// `kept` gets the memory to which new entries point; others point into `now`.
Change add_changes(const tensors::PartKey& key, program::DType dtype,
                   std::span<const std::byte> now, const IncrementBase::Part& base, int bits,
                   TensorTable& table, std::list<std::vector<std::byte>>& kept);

/// Turns the part `whole` of the base into that of the incremental checkpoint whose file has
/// `table`. Returns its bytes. Throws InputError that begins with `path` when they do not fit.
std::vector<std::byte> with_changes(const tensors::PartKey& key, const TensorEntry& whole,
                                    const TensorTable& table, const std::string& path);

}  // namespace rehearse::runtime
