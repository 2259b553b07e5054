// Rank 0's end of the control plane: a thread that holds a connection to every rank, passes on
// shared values and reports, holds the vote on the last step, and decides who is to blame when a
// rank dies, falls silent or hangs (the rules are in control.h). What hangs is found from progress
// counters, so a rank that waits for others is never named.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/frame.h"

namespace rehearse::runtime {

inline constexpr std::uint32_t control_version = 2;

/// Where a lane of a rank is, for messages.
struct LaneView {
  std::string name = {};
  std::uint64_t packed = 0, pulses = 0;
  Deadline since = {};  // of the last change
  LaneState state() const { return static_cast<LaneState>(packed & 3U); }
  std::int64_t step() const { return static_cast<std::int64_t>(packed >> 26); }
  Id op() const {
    const auto low = static_cast<Id>((packed >> 2) & 0xffffffU);
    return low == 0xffffffU ? none : low;
  }
};

/// What the supervisor knows about a rank.
struct RankView {
  Id rank = 0;
  bool finished = false;
  Deadline since = {};  // when it came, or finished
  std::vector<LaneView> lanes = {};
};

struct Blame {
  Id rank = none;
  std::string what = {};  // "lane compute has been at step 3, op 7 for 10.2 s"
};
/// Who hangs, if anybody: the rank with a lane at work on one op for longer than the timeout; else,
/// when nobody has moved for so long and somebody waits for communication, the rank that is least
/// advanced among those that do not; else nobody (rank none), and what each waits for. A rank that
/// has named no lane yet is given the time to join once more.
std::optional<Blame> find_hang(const std::vector<RankView>& ranks, Deadline now,
                               const ControlOptions& options);

class Supervisor {
 public:
  Supervisor(Fd listener, int world_size, ControlOptions options);
  /// Hands over what is queued, within a second, and ends the thread.
  ~Supervisor();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
