// A rank's end of the control plane: the state that the callers of Control and its thread share,
// and the functions of the thread (control_thread.cpp).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/control/control.h"
#include "runtime/control/membership/members.h"
#include "runtime/control/net/frame.h"
#include "runtime/control/supervisor.h"

namespace rehearse::runtime {

struct Control::Impl {
  Environment environment;
  ControlOptions options;
  std::unique_ptr<Supervisor> supervisor = {};
  FrameSocket connection = {};
  std::string address = {};  // of this end of the connection
  Fd wake = make_signal(), failed = make_signal();
  std::thread thread = {};
  std::atomic<bool> ending = false, stop_wanted = false;
  std::atomic<int> interrupt_wanted = 0;  // a signal number; 0: none

  mutable std::mutex mutex = {};
  mutable std::condition_variable changed = {};
  std::vector<Message> outgoing = {};
  std::map<std::string, std::string> values = {};
  std::map<std::string, std::uint64_t> gatherings = {};
  std::deque<StepReport> reports = {};
  std::deque<LaneProgress> lanes = {};  // a deque keeps its elements' addresses
  std::vector<std::string> lane_names = {};
  std::mutex updates_lock = {};
  std::list<std::function<void()>> updates = {};  // before_beats
  Secret secret = {}, data_secret = {};
  std::vector<MemberInfo> members = {};
  bool welcomed = false, released = false, voting = false, free_running = false;
  std::int64_t begun = -1;
  std::optional<std::int64_t> last = {};
  std::optional<std::string> verdict = {};

  // Used by the thread only.
  Deadline heard = Clock::now(), next_beat = {}, last_turn = Clock::now(), judged_at = {};
  std::optional<Deadline> interrupted_by = {};  // deadline of an interruption once asked for
  std::size_t lanes_told = 0;

  Impl(Environment environment_in, ControlOptions options_in)
      : environment(std::move(environment_in)), options(std::move(options_in)) {}

  std::string rank_zero() const;
  std::string address_of_rank_zero() const;
  void queue(Message message);
  void start();
  Secret find_secret() const;
  bool store_has_secret() const;

  // Called with the mutex held.
  void judge(const std::string& what, Id rank = none, Fate fate = Fate::ends);
  void vote();
  void welcome(Message& message);

  // Called by the thread.
  void run();
  void turn();
  void receive();
  void handle(Message& message);
  /// Rank 0 is lost: what it has done or is.
  void lose(const std::string& what, Fate fate = Fate::ends);
  void beat(Deadline now);
  void send_outgoing();
  /// Passes an interruption asked for here to the supervisor. Ends this process if no answer comes.
  void pass_on_interrupt(Deadline now);
  /// Ends this process when it still runs `exit_after` after a verdict, because its threads hang.
  void end_if_overdue(Deadline now);

  /// Waits until `ready`. Returns false at the deadline; throws BackendError after a verdict.
  template <class Ready>
  bool wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
    changed.wait_until(lock, deadline, [&] { return verdict.has_value() || ready(); });
    if (!ready() && verdict) throw BackendError(*verdict);
    return ready();
  }
};

}  // namespace rehearse::runtime
