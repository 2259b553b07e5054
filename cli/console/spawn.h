// Runs another program and returns its exit status and its output. Words for a shell.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace rehearse::cli {

struct Finished {
  int status = 0;           // 128 + n after signal n; 127: the program could not be started
  std::string output = {};  // standard output, with `with_errors` also standard error
  bool timed_out = false;   // it was killed, because it took too long
};

/// Ctrl-C on a terminal reaches all processes of this one's group; not those of their own.
enum class ProcessGroup { same, own };

/// Runs a program and waits for its end, no longer than `patience`: then kills it. Without a
/// `patience`, that of patience_with_programs, and a program that was killed is a BackendError.
/// `arguments`: the program's name or path, then its arguments. Throws BackendError when no pipe
/// can be created.
Finished run_program(const std::vector<std::string>& arguments, bool with_errors,
                     ProcessGroup group = ProcessGroup::same, std::optional<Seconds> patience = {});

/// The word as a shell reads it: in quotes if it has characters that are special to a shell.
std::string quoted(const std::string& word);

}  // namespace rehearse::cli
