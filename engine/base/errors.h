// The three kinds of errors, and the exit status that each one causes: wrong input (2, before
// anything ran), an invalid program, compiled or hand-written (2), and a failure of the machine or
// of a peer (1: sockets, disks, Gloo, NCCL, CUDA, a dead peer).
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rehearse {

/// A file or flag of the user is wrong. The message says file, key, value, constraint and the
/// nearest valid choice.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A program breaks a rule of the program language: a race, a deadlock, a layout mismatch. The
/// message prints the ops and marks the wrong one.
struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The machine or a peer failed.
struct BackendError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The candidate with the smallest edit distance to `word`, for "did you mean"; empty when no
/// candidate is near, or when `word` is another thing (term_note).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rehearse
