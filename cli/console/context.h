// The global options of the command line, the work of the chosen subcommand, and exit statuses.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace rehearse::cli {

/// Exit statuses; after signal n the status is 128 + n. good: success. failed: the run failed.
/// refused: the request was refused before the first step.
enum Exit : int { good = 0, failed = 1, refused = 2 };

struct Context {
  bool json = false, quiet = false;
  std::vector<std::string> set = {};        // --set key.path=value, in order
  std::vector<std::string> arguments = {};  // argv; the first is the program's path
  std::string version = {};
  std::function<int()> run = {};  // the work of the chosen subcommand; returns an exit status
};

}  // namespace rehearse::cli
