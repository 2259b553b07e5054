// The line between the launcher of `--nproc` and each process that it has started. After a failure
// the processes that are left do not end: they report, and the launcher assigns them their ranks of
// the next start. So survivors and processes that stand by need not start anew.
//
//   process                          launcher
//      |----- failed: "rank 1 ..." ----->|   all others have reported or ended
//      |<---- assignment: rank 0 of 3 ---|   or: over, and the process ends
//      |----- began at step 40 --------->|
#pragma once
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/launch/environment.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

/// Which rank a process is in the next start of a run, and how that start differs from the first.
struct Assignment {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string address = {};           // of rank 0's node
  std::uint16_t port = 0;             // where rank 0 listens
  int start = 0;                      // as Environment::start
  std::int64_t began_at = -1;         // as Environment::began_at
  bool first = false;                 // the run's first start: as the command line says
  std::string resume_from = {};       // a checkpoint; empty: the run begins anew
  std::vector<std::string> set = {};  // --set of this start, after those of the command line
  bool over = false;                  // there is no next start: the process ends
};

/// Asks a rank to end its start after a step that all ranks reach, and to wait.
inline constexpr int drain_signal = SIGUSR1;

/// What a process tells its launcher. ready: it stands by and can become a rank. failed: its start
/// has failed. drained: it has ended its start at a step because the launcher asked for that.
/// began: rank 0 is about to run its first step. evicted: it is too slow and ends. unbalanced: the
/// run should drain and go on with other shares. stuck, broken: the verdict names a rank with this
/// Fate.
enum class ReportKind : std::uint8_t {
  ready,
  failed,
  drained,
  began,
  evicted,
  unbalanced,
  stuck,
  broken
};
constexpr auto spellings(ReportKind) {
  return std::to_array<const char*>(
      {"ready", "failed", "drained", "began", "evicted", "unbalanced", "stuck", "broken"});
}
struct Report {
  ReportKind kind = ReportKind::ready;
  std::string text = {};         // failed: the error; unbalanced: why
  std::int64_t step = 0;         // drained, began
  std::vector<int> shares = {};  // unbalanced
  int rank = -1;                 // stuck, broken
  double silent = 0;             // stuck: for so many seconds at least it has made no progress
};

// One message is one packet. `receive`: nothing when the other end has closed or nothing is there
// (a non-blocking descriptor). Both throw BackendError when the other end sends nonsense.
void send(int fd, const Assignment& assignment);
void send(int fd, const Report& report);
std::optional<Assignment> receive_assignment(int fd);
std::optional<Report> receive_report(int fd);

/// The process's end.
class Agent {
 public:
  /// The variables by which a launcher hands over the line, its listening socket and the terminal's
  /// standard output; the last also says whether the process stands by at first.
  static constexpr const char* variable = "REHEARSE_AGENT";
  static std::string value(int line, int listener, int output, bool stands_by);
  /// Nothing when the launcher has no such line. Throws InputError when the variable is malformed.
  static std::optional<Agent> of_process(const Variables& variable = process_variable);

  bool stands_by() const { return stands_by_; }
  void tell(const Report& report) const { send(line_.get(), report); }
  /// Tells and waits for the next assignment. Nothing: the run is over, or the launcher is gone.
  std::optional<Assignment> next(const Report& report) const;
  /// The environment of an assigned rank. Rank 0's listening socket is a copy: the launcher's stays
  /// open for the next start. Standard output is the terminal's for rank 0 and none for others.
  Environment environment_of(const Assignment& assignment) const;

 private:
  Fd line_ = {}, listener_ = {}, output_ = {};
  bool stands_by_ = false;
};

}  // namespace rehearse::runtime
