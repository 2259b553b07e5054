// Rank 0's end of the control plane: a thread with a connection to every rank. It passes on shared
// values and reports, counts the votes on the last step, and decides who is to blame when a rank
// dies, falls silent or hangs (rules: control.h). It finds hangs from progress counters, so it
// never names a rank that waits for others. The vote after SIGINT:
//
//   a rank            supervisor          all ranks
//     |----- stop ------>|                   |
//     |                  |----- propose ---->|  begin_step blocks
//     |                  |<---- vote --------|  the last step that this rank has begun
//     |                  |----- last ------->|  the maximum: every rank ends after it; with
//     |                  |                   |  free-running ranks one step later (start_at)
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/control.h"
#include "runtime/control/net/frame.h"

namespace rehearse::runtime {

/// A lane of a rank, as its heartbeats describe it (packed: see LaneProgress).
struct LaneView {
  std::string name = {};
  std::uint64_t packed = 0, pulses = 0;
  Deadline since = {};  // time of the last change
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
  Deadline since = {};  // when it joined, or finished
  std::vector<LaneView> lanes = {};
};

/// Who is to blame, and for what. `rank` none: no single rank.
struct Blame {
  Id rank = none;
  std::string what = {};  // "lane compute has been at step 3, op 7 for 10.2 s"
};
/// Who hangs, or nothing while anybody moves. The first that holds:
/// - a rank with a lane at work on one op for longer than the timeout is to blame;
/// - no lane has moved for the timeout and some rank waits for communication: of the ranks that do
///   not wait, the least advanced is to blame;
/// - the same, but every rank waits: no rank is to blame, and the text says what each waits for.
/// A rank that has registered no lane yet gets the join timeout in addition.
std::optional<Blame> find_hang(const std::vector<RankView>& ranks, Deadline now,
                               const ControlOptions& options);

/// Who has sent something broken: "sent a broken message to rank 0: ..." follows the name.
std::string broken_message(Id to, const std::string& what);

/// What a message of the kind `report` says. Throws BackendError when it is too short.
StepReport report_of(Message& message);

class Supervisor {
 public:
  /// `start`: as Environment::start. Ranks of other starts are not heard: all starts share the
  /// launcher's socket, and a rank of an earlier one may have connected to it before it died.
  /// Whoever does not know the secret is refused, and so is a rank that does not belong to the run.
  /// That ends neither this rank nor any other one.
  Supervisor(Fd listener, int world_size, int start, const Secret& secret, ControlOptions options);
  /// Sends what is queued, for at most one second, and ends the thread.
  ~Supervisor();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
