// Numbers stored in few bits, with a range check at every conversion. Without the check an age of
// 256 would become 0 in eight bits and silently change the program.
#pragma once
#include <concepts>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse {

/// Converts `value` to a narrower type. Throws ProgramError when the value does not fit, with
/// `what` in the message: "an age is -1, but must be from 0 to 255".
template <std::integral To>
constexpr To narrow(std::integral auto value, const char* what) {
  using Limits = std::numeric_limits<To>;
  if (!std::in_range<To>(value))
    throw ProgramError(std::string(what) + " is " + std::to_string(value) + ", but must be from " +
                       std::to_string(Limits::min()) + " to " + std::to_string(Limits::max()));
  return static_cast<To>(value);
}

/// A number stored as `Bits`, checked on every assignment. Messages call it `Of::name`.
template <std::unsigned_integral Bits, class Of>
class Narrow {
  Bits value_ = 0;  // first: otherwise nvcc does not find it in the constructor

 public:
  static constexpr int most = std::numeric_limits<Bits>::max();

  constexpr Narrow() = default;
  constexpr Narrow(
      std::integral auto value)  // NOLINT(google-explicit-constructor): a number is one
      : value_(narrow<Bits>(value, Of::name)) {}
  constexpr operator int() const { return value_; }  // NOLINT(google-explicit-constructor)
  friend constexpr bool operator==(Narrow, Narrow) = default;
  friend constexpr bool operator==(Narrow a, std::integral auto b) {
    return std::cmp_equal(a.value_, b);
  }
};

}  // namespace rehearse
