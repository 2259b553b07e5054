// What breaks in a run and how the run survives it: [faults], [checkpoint] and [recovery] of a job.
// docs/faults.md describes the kinds of checkpoint and the policies.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace rehearse::job {

/// [faults]
struct Faults {
  std::string model = {};  // failure model, by name or path; empty: none
  std::string trace = {};  // path of a fault trace; empty: none
  std::uint64_t seed = 1;  // of the first draw from the model
  double rate = 1;         // factor on the model's rates
  bool correlated = true;  // false: every incident takes one node, and rates do not grow with size
};

/// Who writes what, and what waits for it. full: one data-parallel replica writes everything, and
/// all steps wait. sharded: the same, but every rank writes a part. async: steps wait only while
/// each rank copies its part to its host's memory; it is written behind the next steps, one
/// checkpoint at a time. incremental: sharded, of what differs from the last whole one. peer: each
/// node's part is copied to the memory of other nodes (Gemini, SOSP 2023).
enum class CheckpointKind : std::uint8_t { full, async, sharded, incremental, peer };
constexpr auto spellings(CheckpointKind) {
  return std::to_array<const char*>({"full", "async", "sharded", "incremental", "peer"});
}
/// shared: the file system of all nodes. local: each node's own disk, which is lost with the node.
/// memory: that of each node's host, which is lost with the node too.
enum class CheckpointPlace : std::uint8_t { shared, local, memory };
constexpr auto spellings(CheckpointPlace) {
  return std::to_array<const char*>({"shared", "local", "memory"});
}

/// An incremental checkpoint compares chunks of so many bytes. It quantises the differences of a
/// chunk by one scale, an fp32 number.
inline constexpr int chunk_bytes = 1024;
/// Bytes of an element of `width` bytes whose difference is saved with so many bits.
constexpr double bytes_of_difference(int width, int bits) {
  if (bits == 0 || bits >= 8 * width) return width;
  return bits / 8.0 + 4.0 * width / chunk_bytes;
}

/// [checkpoint]. How often one is written is [train] save_every.
struct Checkpoint {
  CheckpointKind kind = CheckpointKind::sharded;
  CheckpointPlace place = CheckpointPlace::shared;
  double changed = 0.1;  // incremental: part of the state that differs from the last whole one
  int bits = 0;          // incremental: of each difference of floating-point state; 0: exact
  int full_every = 10;   // of those that a node's death can destroy, or incremental ones: so many
                         // checkpoints, one of which is whole and on the shared file system
  int group = 2;         // peer: nodes that hold each other's parts
  std::string folder = {};  // of each node: local, memory and peer
};

/// What a run does after a failure (engine/goodput/policies/, one file for each).
enum class RecoveryPolicy : std::uint8_t { restart, shrink, grow, replica, spare };
constexpr auto spellings(RecoveryPolicy) {
  return std::to_array<const char*>({"restart", "shrink", "grow", "replica", "spare"});
}

/// State that a run may lose when it goes on from a checkpoint, as with systems that do not save
/// it: the optimizer's moments, the residuals of error feedback, older versions of the weights.
enum class LeftState : std::uint8_t { moments, residuals, versions };
constexpr auto spellings(LeftState) {
  return std::to_array<const char*>({"moments", "residuals", "versions"});
}

/// What a real run does with a rank that is slow. evict: the rank ends as if it had died.
/// rebalance: all ranks go on with other method.shares, which follow their measured speeds.
enum class SlowRankPolicy : std::uint8_t { evict, rebalance };
constexpr auto spellings(SlowRankPolicy) {
  return std::to_array<const char*>({"evict", "rebalance"});
}

/// [recovery]. Optional members: none when the file leaves the key out.
struct Recovery {
  RecoveryPolicy policy = RecoveryPolicy::restart;
  int restarts = 0;                         // how often `rehearse train` may start ranks again
  std::optional<Seconds> detection = {};    // none: the failure's own, or 10 minutes
  std::optional<Seconds> restart = {};      // none: by the number of ranks (goodput/restart_time.h)
  std::optional<Seconds> replacement = {};  // none: the failure model's
  std::optional<int> spares = {};           // none: the failure model's
  Seconds replan = Seconds(30);             // a new plan and new communicators for other ranks
  Seconds takeover = Seconds(60);           // a standing-by process takes the place of a dead one
  double overhead = 0;                      // part of a step that being able to recover costs
  int min_ranks = 1;                        // with fewer the run waits
  std::vector<LeftState> without = {};      // real runs: not read from a checkpoint
  double slow_factor = 0;                   // from how many times as long a rank is slow; 0: none
  SlowRankPolicy slow_rank = SlowRankPolicy::evict;
};

}  // namespace rehearse::job
