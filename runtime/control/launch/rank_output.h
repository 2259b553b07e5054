// What ranks write to standard error, as the user of the launcher sees it: whole lines after
// "[rank k] ", and every error once.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/control/launch/rank_process.h"

namespace rehearse::runtime {

class RankOutput {
 public:
  /// How a line of an error begins. The control plane's verdict makes every rank write the same
  /// error.
  static constexpr std::string_view error_mark = "rehearse: ";

  /// Passes on the complete lines of a process's standard error, and at its end the rest.
  void drain(RankProcess& process);
  /// Shows text of a process.
  void emit(int rank, const std::string& text);
  static void say(const std::string& text);

  /// From now on errors are held back: they only say that other ranks ended, which was asked for.
  void hold() { holds_ = true; }
  /// Shows what was held back.
  void show_held();
  /// Errors of the next start may be the same as those of this one.
  void forget() { said_.clear(); }

 private:
  bool holds_ = false;
  std::set<std::string> said_ = {};
  std::vector<std::string> held_ = {};
};

}  // namespace rehearse::runtime
