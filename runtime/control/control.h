// The control plane. Every rank keeps one TCP connection to a supervisor thread in rank 0, apart
// from the data connections. It carries heartbeats with progress counters, small shared values
// (addresses, hashes), reports of steps, and the vote that ends a run at the same step on all
// ranks.
//
//   rank 1 --- control --- supervisor (thread in rank 0) --- control --- rank 2
//      \____________________________ data ____________________________/
//
// The supervisor decides who is to blame when the run stops:
//   - a connection closes without `finish`: that rank was killed or crashed;
//   - no heartbeat within the timeout: that rank is stopped, or its machine is down. If all other
//     hosts fell silent together, the network of rank 0's host is cut;
//   - heartbeats, but one lane works on one op for longer than the timeout: that rank hangs.
//     A lane that waits for communication is not to blame; the rank that has not arrived is;
//   - a message that is short, long or unknown, to the supervisor or to another rank: the rank that
//     sent it is broken. Its connection is closed, and the run goes on as if it had died.
// Every rank gets the verdict, which wakes whatever blocks there (see `failure_fd`). Errors then
// name the rank to blame, not the neighbour whose socket happened to close first.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/program.h"
#include "runtime/control/launch/environment.h"

namespace rehearse::runtime {

enum class LaneState : std::uint8_t {
  idle,           // nothing to do
  working,        // computes, copies or reads a file
  dependent,      // waits for another lane of this rank
  communicating,  // in a collective, send, receive or take: waits for other ranks
};

/// What becomes of the rank that a verdict names.
enum class Fate : std::uint8_t {
  ends,    // by itself, as all others do
  stuck,   // silent, or it hangs: it may never end
  broken,  // it has sent something broken: it counts as dead
};

/// Where a lane is, in one word: step (38 bits), op (24 bits), state (2 bits). A change is one
/// relaxed store, so it is cheap enough for every op.
class LaneProgress {
 public:
  void enter(LaneState state, std::int64_t step, Id op) noexcept {
    packed_.store((static_cast<std::uint64_t>(step) << 26) |
                      (static_cast<std::uint64_t>(op & 0xffffffU) << 2) |
                      static_cast<std::uint64_t>(state),
                  std::memory_order_relaxed);
  }
  /// Changes the state and keeps the place. Call it from the thread that calls `enter`.
  void become(LaneState state) noexcept {
    packed_.store((packed() & ~std::uint64_t{3}) | static_cast<std::uint64_t>(state),
                  std::memory_order_relaxed);
  }
  /// A sign of life within a long op (writing a checkpoint): it counts as progress.
  void pulse() noexcept { pulses_.fetch_add(1, std::memory_order_relaxed); }
  /// As `other` is.
  void follow(const LaneProgress& other) noexcept {
    packed_.store(other.packed(), std::memory_order_relaxed);
    pulses_.store(other.pulses(), std::memory_order_relaxed);
  }
  std::uint64_t packed() const noexcept { return packed_.load(std::memory_order_relaxed); }
  std::uint64_t pulses() const noexcept { return pulses_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> packed_ = 0, pulses_ = 0;
};

/// For `longer` of Control::gather: only a verdict ends the wait.
inline constexpr Seconds until_verdict = Seconds(1e9);

struct ControlOptions {
  Seconds timeout = Seconds(60);    // after which a silent or stuck rank is to blame
  Seconds heartbeat = Seconds(1);   // at most longest_heartbeat(timeout)
  Seconds join = Seconds(120);      // for all ranks to join
  Seconds exit_after = Seconds(5);  // from a verdict to the forced end of a process; 0: never
  /// A file with the run's secret, which rank 0 makes; for launchers that hand over none.
  std::string secret_file = {};
  bool trust_network = false;  // ranks on several hosts may do without a secret
  bool encrypt = false;        // control and data connections
  std::string interface = {};  // as in address_for_other_hosts
  /// Names an op of a rank in messages: "backward L3.mlp". Called in rank 0's supervisor thread.
  std::function<std::string(Id rank, Id op)> describe = {};
  /// Called in the control thread when a verdict names a rank that others must end: it is stuck or
  /// broken.
  std::function<void(Id rank, Fate fate)> lost = {};
};

/// What a rank reported about a step.
struct StepReport {
  Id rank = 0;
  std::int64_t step = 0;
  std::vector<double> values = {};
};

class Control {
 public:
  /// Joins the run and returns when every rank has joined. Throws InputError when the heartbeat
  /// does not suit the timeout, and when ranks on several hosts have no secret. Throws BackendError
  /// that names the ranks that are missing, the port in use, or the address that does not answer or
  /// resolve.
  Control(const Environment& environment, ControlOptions options);
  /// Without `finish` before it, every other rank ends with the error that this rank left early.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const Environment& environment() const;
  const ControlOptions& options() const;

  /// A new progress counter of this rank. It lives as long as the control plane.
  LaneProgress& lane(const std::string& name);

  /// Calls `update` before each heartbeat, in the control thread, until the last handle is gone: it
  /// enters what no thread of its own can tell. It must not throw or wait.
  std::shared_ptr<void> before_beats(std::function<void()> update);

  /// Shares a value with every rank. Each key may be set once.
  void publish(const std::string& key, const std::string& value);
  /// Waits for the value of a key, up to the join timeout. Throws BackendError when it does not
  /// come.
  std::string await(const std::string& key);
  /// The value of a key if it has reached this rank; does not wait.
  std::optional<std::string> lookup(const std::string& key) const;
  /// Every rank's value of `key`, by rank. All ranks call it; a key may be gathered again. Waits
  /// for the other ranks for the join timeout plus `longer`, then throws BackendError that names
  /// those missing. With `until_verdict`, a lane of this rank must communicate meanwhile: else
  /// nobody looks for a rank that does not come.
  std::vector<std::string> gather(const std::string& key, const std::string& value,
                                  Seconds longer = Seconds(0));
  /// Throws BackendError on every rank unless all gave the same value. The error says which rank
  /// gave which value.
  void agree(const std::string& what, const std::string& value);
  /// Returns when every rank has called it with this name.
  void barrier(const std::string& name);

  /// Queues a report for rank 0; does not wait.
  void report(std::int64_t step, std::span<const double> values);
  /// On rank 0: the next report, or nothing when none has come.
  std::optional<StepReport> next_report();

  /// Asks all ranks to end after a step that all of them can reach (first SIGINT).
  /// Async-signal-safe.
  void request_stop() noexcept;
  /// Ends every process of the run at once with status 128 + signal, without blame (second SIGINT).
  /// Async-signal-safe.
  void interrupt(int signal) noexcept;
  /// Call once before the first step, and let all ranks meet before any of them begins it. A
  /// free-running rank counts its own steps, so its vote does not count. The last step is then one
  /// that no other rank has begun: from its first answer on it tells free-running ranks to end.
  void start_at(std::int64_t first, bool free_running);
  /// Call before issuing a step; on a free-running rank, with the step from which the other ranks
  /// go on. Returns false when the run ends before this step. Blocks while the ranks vote on the
  /// last step. Throws BackendError after a verdict.
  bool begin_step(std::int64_t step);
  /// The last step of the run, once the ranks have voted to end early.
  std::optional<std::int64_t> last_step() const;

  /// Reports this rank's own error, with which every other rank then ends. Waits up to 2 s for the
  /// verdict.
  void fail(const std::string& message) noexcept;
  /// The text of the verdict, if there is one.
  std::optional<std::string> failure() const;
  /// Throws BackendError with the verdict, if there is one.
  void check() const;
  /// A descriptor that becomes readable (poll) when there is a verdict. Wait for it together with
  /// every data socket.
  int failure_fd() const;
  /// Tells the supervisor that another rank has sent this one something broken, which makes the
  /// verdict name that rank. Does not wait.
  void accuse(Id rank, const std::string& what) const;
  /// The same, and throws BackendError with the verdict.
  [[noreturn]] void refuse(Id rank, const std::string& what) const;
  /// For an error on a data connection: waits until the verdict must have come, and throws
  /// BackendError with its text, or with `otherwise` when there is none. Before that it accuses the
  /// rank at the other end, if it is given.
  [[noreturn]] void blame(const std::string& otherwise, Id other_end = none) const;

  /// Orderly end. Returns when every rank has called it, so that no exit looks like a crash.
  void finish();

 private:
  friend struct Members;  // what the data connections need (runtime/control/membership/members.h)
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
