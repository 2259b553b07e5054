// Numbers kept in few bits, checked where they are made: an age of 256 that became 0 in eight bits
// would be another program.
#pragma once
#include <concepts>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse {

/// The same number in fewer bits. Throws ProgramError that says what it is of: "an age is -1, but
/// must be from 0 to 255".
template <std::integral To>
constexpr To narrow(std::integral auto value, const char* what) {
  using Limits = std::numeric_limits<To>;
  if (!std::in_range<To>(value))
    throw ProgramError(std::string(what) + " is " + std::to_string(value) + ", but must be from " +
                       std::to_string(Limits::min()) + " to " + std::to_string(Limits::max()));
  return static_cast<To>(value);
}

/// A number of `Bits` that is checked whenever one is put into it. `Of::name` is what messages call
/// it.
template <std::unsigned_integral Bits, class Of>
class Narrow {
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

 private:
  Bits value_ = 0;
};

}  // namespace rehearse
