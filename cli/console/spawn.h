// Another program's exit status and what it wrote.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

struct Finished {
  int status = 0;           // 128 + n after signal n, 127 when it could not be started
  std::string output = {};  // both streams, or standard output alone
};

/// Runs a program (its name or path first, then its arguments) and waits for it. Throws
/// BackendError when this machine has no pipe left.
Finished run_program(const std::vector<std::string>& arguments, bool with_errors);

}  // namespace rehearse::cli
