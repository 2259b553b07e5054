// How a long command says how far it is, on standard error: on a terminal in one live line, else
// (a file, a pipe) in a line every ten seconds, so that a log neither fills up nor stays silent for
// minutes.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "cli/console/context.h"

namespace rehearse::cli {

class Teller {
 public:
  /// Silent with --quiet.
  explicit Teller(const Context& context);
  ~Teller() { done(); }
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  /// What is going on from now on; a live line shows it at once. The second text is for lines.
  void say(const std::string& live, const std::string& line);
  void say(const std::string& text) { say(text, text); }
  /// Nothing is going on any more: wipes the live line, so that results can be printed.
  void done();

 private:
  enum class Way { nothing, lines, live };
  void print_lines(const std::stop_token& stop);

  Way way_;
  bool shown_ = false;  // a live line stands on the terminal
  std::mutex mutex_ = {};
  std::condition_variable_any wake_ = {};
  std::string text_ = {};
  std::jthread clock_ = {};  // last: it uses the others
};

}  // namespace rehearse::cli
