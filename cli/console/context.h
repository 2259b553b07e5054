// What a command is asked for beside its own options, and its exit statuses.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace rehearse::cli {

/// Exit statuses; after signal n: 128 + n.
enum Exit : int { good = 0, failed = 1, refused = 2 };

struct Context {
  bool json = false, quiet = false;
  std::vector<std::string> set = {};        // --set key.path=value, in order
  std::vector<std::string> arguments = {};  // argv, the program's own path first
  std::string version = {};
  std::function<int()> run = {};  // of the chosen subcommand; returns an Exit
};

}  // namespace rehearse::cli
