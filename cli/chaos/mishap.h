// What can go wrong in a trial of `rehearse chaos`, and what a trial draws: a step, a phase, a
// rank.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/faults/event.h"

namespace rehearse::cli {

enum class Mishap : std::uint8_t {
  kill,                  // SIGKILL in a phase of a step
  kill_rank_0,           // the same to the rank with the supervisor
  kill_launcher,         // SIGKILL to the process that started the ranks
  segfault,              // SIGSEGV from outside
  stop,                  // SIGSTOP for good
  stop_continue,         // SIGSTOP, and SIGCONT before the timeout
  slow,                  // local ops take five times as long for a second
  hang,                  // an op never returns, heartbeats go on
  link_down_up,          // a cable is pulled, and plugged in before the timeout
  link_down,             // a cable is pulled for good
  loss_1,                // 1% of the packets that reach a node are lost
  loss_5,                // 5%
  partition,             // a node cannot reach the others
  disk_full,             // no space for a checkpoint
  truncated_checkpoint,  // then a rank dies
  flipped_bit,           // of a checkpoint, then a rank dies
  death_during_recovery,
  death_during_save,
  wrong_numbers  // a bit of a weight flips
};
constexpr auto spellings(Mishap) {
  return std::to_array<const char*>({"kill", "kill-rank-0", "kill-launcher", "segfault", "stop",
                                     "stop-continue", "slow", "hang", "link-down-up", "link-down",
                                     "loss-1", "loss-5", "partition", "disk-full",
                                     "truncated-checkpoint", "flipped-bit", "death-during-recovery",
                                     "death-during-save", "wrong-numbers"});
}

/// Whether the kind needs nodes with cables (testbed/).
bool needs_network(Mishap kind);

/// Parses a list such as "kill,stop"; "all" is every kind. Throws InputError with the nearest name.
std::vector<Mishap> parse_mishaps(const std::string& list);

/// What a trial draws.
struct Draws {
  std::int64_t step = 1;  // in which it strikes, from 1
  faults::Phase phase = faults::Phase::begin;
  int rank = 0, other = 0;  // `other`: who dies second, where somebody does
  double share = 0.5;       // of the time from the first to the last step: when a cable is pulled
  bool real_disk = false;   // disk_full: a file system without space, not a limit of the rank
};

struct Shape {
  int ranks = 1;
  std::int64_t steps = 1, save_every = 1;
  int ranks_left = 1;  // that are there after a recovery, whoever died
};
/// The draws of a seed; equal on every machine.
Draws draw(Mishap kind, std::uint64_t seed, const Shape& shape);

/// The events that ranks replay; empty: the kind comes from outside.
faults::Trace trace_of(Mishap kind, const Draws& draws, const Shape& shape);

/// In words: "rank 1 at step 7, backward".
std::string words_of(Mishap kind, const Draws& draws);

}  // namespace rehearse::cli
