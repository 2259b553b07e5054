// Shows the progress of a long command on standard error. On a terminal it rewrites one live line.
// In a file or pipe it prints a line every ten seconds, so that a log neither fills up nor stays
// silent for minutes.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "cli/console/context.h"
#include "study/progress.h"

namespace rehearse::cli {

class Teller : public study::Progress {
 public:
  /// Prints nothing with --quiet.
  explicit Teller(const Context& context);
  ~Teller() override { done(); }
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  /// Sets the current progress. `live` is shown at once on a terminal; `line` is the text for the
  /// lines of a file or pipe.
  void say(const std::string& live, const std::string& line) override;
  using Progress::say;
  /// Ends the progress: clears the live line, so that results can be printed.
  void done();

 private:
  enum class Way { nothing, lines, live };
  void print_lines(const std::stop_token& stop);

  Way way_;
  bool shown_ = false;  // a live line is on the terminal
  std::mutex mutex_ = {};
  std::condition_variable_any wake_ = {};
  std::string text_ = {};
  std::jthread clock_ = {};  // prints the lines; the last member, because it uses the others
};

}  // namespace rehearse::cli
