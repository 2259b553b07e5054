// SIGINT and SIGTERM during a campaign: the run in hand is ended, what is known is shown, and the
// folder of the runs is removed as at any other end.
#pragma once
#include <csignal>

namespace rehearse::cli {

class Interruption {
 public:
  /// Catches the signals until its end. One object at a time.
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  /// The signal that has come; 0: none.
  static int signal();

 private:
  struct sigaction interrupt_ = {}, terminate_ = {};  // as they were before
};

}  // namespace rehearse::cli
