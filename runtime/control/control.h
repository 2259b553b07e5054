// The control plane: beside the data connections every rank keeps one TCP connection to a
// supervisor thread in rank 0. It carries heartbeats with progress counters, small shared values
// (addresses, hashes), per-step reports to rank 0, and the vote that ends a run at the same step
// everywhere. It decides who is to blame when something stops:
//   - a connection that closes without a goodbye: that rank was killed or crashed;
//   - no heartbeat within the timeout: that rank is stopped, or its machine is gone;
//   - heartbeats but a lane at work on one op for longer than the timeout: that rank hangs. A lane
//     that waits for communication is never to blame: the rank that has not arrived is.
// The verdict reaches every rank, wakes whatever is blocked there (see `failure_fd`) and is what
// the error says, instead of the name of the neighbour that happened to close its socket first.
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
#include "runtime/control/environment.h"

namespace rehearse::runtime {

enum class LaneState : std::uint8_t {
  idle,           // nothing to do
  working,        // on an op of its own: computing, copying, reading a file
  dependent,      // waiting for another lane of this rank
  communicating,  // in a collective, send, receive or take: waiting for others
};

/// Where a lane is. One relaxed store per change: cheap enough for every op.
class LaneProgress {
 public:
  void enter(LaneState state, std::int64_t step, Id op) noexcept {
    packed_.store((static_cast<std::uint64_t>(step) << 26) |
                      (static_cast<std::uint64_t>(op & 0xffffffU) << 2) |
                      static_cast<std::uint64_t>(state),
                  std::memory_order_relaxed);
  }
  /// A sign of life within a long op (writing a checkpoint, reading data): progress without a step.
  void pulse() noexcept { pulses_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t packed() const noexcept { return packed_.load(std::memory_order_relaxed); }
  std::uint64_t pulses() const noexcept { return pulses_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> packed_ = 0, pulses_ = 0;
};

struct ControlOptions {
  Seconds timeout = Seconds(60);    // to blame a rank that is silent or stuck
  Seconds heartbeat = Seconds(1);   // at most longest_heartbeat(timeout)
  Seconds join = Seconds(120);      // for all ranks to come
  Seconds exit_after = Seconds(5);  // a process that has not ended so long after a verdict is ended
  /// Names an op of a rank in messages: "backward L3.mlp". Called in rank 0's supervisor thread.
  std::function<std::string(Id rank, Id op)> describe = {};
};

/// What a rank said about a step.
struct StepReport {
  Id rank = 0;
  std::int64_t step = 0;
  std::vector<double> values = {};
};

class Control {
 public:
  /// Joins the run: returns when every rank has. Throws BackendError that names the ranks that did
  /// not come, the port in use, the address that does not answer or resolve.
  Control(const Environment& environment, ControlOptions options);
  /// Without a `finish` before it, every other rank ends with the error that this one left early.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const Environment& environment() const;
  const ControlOptions& options() const;

  /// A progress counter of this rank; lives as long as the control plane.
  LaneProgress& lane(const std::string& name);

  /// Shares a value with every rank. A key is set once.
  void publish(const std::string& key, const std::string& value);
  /// The value of a key, waiting for it up to the join timeout. Throws BackendError.
  std::string await(const std::string& key);
  /// The value of a key if it is known here.
  std::optional<std::string> lookup(const std::string& key) const;
  /// Every rank's value of `key`, by rank. All ranks call it; a key may be gathered again. Waits
  /// for the others as long as for them to join, and `longer`.
  std::vector<std::string> gather(const std::string& key, const std::string& value,
                                  Seconds longer = Seconds(0));
  /// Throws BackendError on every rank, naming the ranks that differ, unless all gave one value.
  void agree(const std::string& what, const std::string& value);
  void barrier(const std::string& name);

  /// Queues a report for rank 0 and returns.
  void report(std::int64_t step, std::span<const double> values);
  /// Rank 0: the next report that has come; nothing when there is none.
  std::optional<StepReport> next_report();

  /// Asks every rank to stop at the end of a step that all can reach (SIGINT). Async-signal-safe.
  void request_stop() noexcept;
  /// Ends every process of the run at once with 128 + signal, blaming nobody (a second SIGINT).
  /// Async-signal-safe.
  void interrupt(int signal) noexcept;
  /// Call before issuing a step. False when the run is to end before it. Blocks for the moment that
  /// a vote on the last step takes. A free-running rank counts steps of its own: it has no vote,
  /// and goes on until those it works for have ended. Throws BackendError after a verdict.
  bool begin_step(std::int64_t step, bool free_running = false);
  /// The step after which the run was asked to end, once decided.
  std::optional<std::int64_t> last_step() const;

  /// Reports this rank's own error: every other rank ends with it.
  void fail(const std::string& message) noexcept;
  /// The verdict, if there is one.
  std::optional<std::string> failure() const;
  /// The rank to blame, once there is a verdict; `none` if it is nobody's.
  Id culprit() const;
  /// Throws BackendError with the verdict, if there is one.
  void check() const;
  /// Becomes readable (poll) when a verdict comes: wait for it beside every data socket.
  int failure_fd() const;
  /// After an error on a data connection: waits until the verdict names the cause, at most until it
  /// must be there, and throws BackendError with it; with `otherwise` when none came.
  [[noreturn]] void blame(const std::string& otherwise) const;

  /// Orderly end: returns when every rank has called it, so that nobody's exit looks like a crash.
  void finish();

 private:
  friend struct Members;  // what the data connections need (runtime/control/members.h)
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
