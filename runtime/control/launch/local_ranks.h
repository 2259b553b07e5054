// The processes of one launcher: its ranks, and those that stand by. Starts them, passes on signals
// and output, notices how they end, and gives them their ranks of the next start.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/launch/launcher.h"
#include "runtime/control/launch/rank_output.h"
#include "runtime/control/launch/rank_process.h"
#include "runtime/control/launch/signal_queue.h"
#include "runtime/control/membership/agent.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

class LocalRanks {
 public:
  /// Both must outlive this object.
  LocalRanks(const RankWork& work, const LaunchOptions& options);

  /// Starts all ranks of a run that has no other launcher, and the spares.
  void start_all();
  void start_spare();
  /// Gives every process that is left its rank of the next start, and fills the other ranks.
  void go_on(const NextStart& next);
  /// Waits for something to happen, at most so long (none: as long as it takes), and reacts.
  void turn(std::optional<Seconds> at_most = {});
  /// Every rank has ended or waits for its next assignment.
  bool settled() const;
  Launched outcome();
  /// Asks all ranks to end after a step that all of them reach, and to wait.
  void drain();
  /// The start has failed, here or elsewhere: ranks that do not end or report within `grace`, since
  /// they hang or are stopped, are killed.
  void fail();
  /// The start has failed because of this rank, which may not end by itself: it is killed at once
  /// if it is here. It has made no progress for at least so long.
  void fail_because_of(int stuck, Seconds silent = {});
  /// The start has failed because of this rank, which counts as dead: it is killed if it is here.
  void lose(int rank);
  /// Ends the processes that wait or stand by.
  void end_all();
  void kill_all(int signal);

  bool draining() const { return draining_; }
  /// Whether rank 0 is here and runs steps.
  bool began() const { return began_; }
  /// The signal that asked this launcher to stop; 0: none.
  int signal() const { return signal_; }
  std::uint16_t port() const { return port_of(listener_.get()); }
  std::string address() const { return local_address(listener_.get()); }
  /// Before the first process starts: the secret of the run, when launchers on other nodes made it.
  void use(const Secret& secret) { secret_ = secret; }

 private:
  RankProcess& start(int rank, int ranks, bool stands_by);
  /// The place of a process among those that are left and stay.
  int place_of(const RankProcess& process, const std::vector<int>& leaving) const;
  /// A process that stands by, or a new one. Takes it down in `places`.
  RankProcess& spare_or_new(int rank, std::size_t place, std::vector<std::size_t>& places);
  int ready_spares() const;
  /// Drains once the processes that are to join are ready.
  void drain_if_due();
  void hear(RankProcess& process);
  void heed(RankProcess& process, const Report& report);
  int gravest() const;
  bool interrupted() const;
  void pass_on(int signal);
  void reap();
  static void give_up(RankProcess& process);

  const RankWork& work_;
  const LaunchOptions& options_;
  SignalQueue signals_ = {};
  // Stays open to the end. When rank 0 ends before it serves the socket, ranks that join wait
  // silently until the launcher ends them, and rank 0's error stays the only one shown.
  Fd listener_;
  Secret secret_;  // of the run
  RankOutput output_ = {};
  std::vector<RankProcess> processes_ = {};
  int ranks_ = 0;               // of this start, those of other launchers as well
  int start_ = 0;               // the number of this start
  std::int64_t began_at_ = -1;  // the first step here; -1: none began
  std::optional<Deadline> deadline_ = {};
  bool failed_ = false, draining_ = false, began_ = false;
  bool ending_ = false;                     // all processes are to end
  std::optional<Deadline> failed_at_ = {};  // when this start failed or drained
  // When the last start failed or drained; none once this one is about to run its first step.
  std::optional<Deadline> down_since_ = {};
  int joining_ = 0;                        // processes that are to join this start
  std::optional<Deadline> joins_at_ = {};  // when to start them; none: they are started
  std::vector<int> died_ = {}, stuck_ = {};
  std::optional<Launched::Rebalance> rebalance_ = {};
  int signal_ = 0;  // the first signal to this process; 0: none
  Deadline signalled_at_ = {};
  bool at_once_ = false;  // a second request came
};

}  // namespace rehearse::runtime
