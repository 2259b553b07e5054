// The three ways in which work can fail, each with its own exit status: what the user wrote (2,
// before anything ran), a program that cannot be right (2: our own or a hand-written one), and the
// world (1: sockets, disks, Gloo, NCCL, CUDA, a dead peer).
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rehearse {

/// The user's file or flag is wrong: says file, key, value, constraint and the nearest valid
/// choice.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A program breaks a rule of its own language: a race, a deadlock, a layout mismatch. Prints the
/// ops, marks the wrong one.
struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The machine or a peer failed.
struct BackendError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The candidate with the smallest edit distance to `word`; empty when nothing is near. For "did
/// you mean".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rehearse
