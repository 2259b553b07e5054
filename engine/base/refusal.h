// A combination of choices that cannot be, as a value. A search (remedies, planner, advice on a
// mesh) meets many of them and goes on to the next combination; any other error is a fault or the
// user's, and ends the command.
#pragma once
#include <string>
#include <tl/expected.hpp>
#include <type_traits>

#include "engine/base/errors.h"

namespace rehearse {

struct Refusal {
  std::string key = {};   // "method.pp"
  std::string text = {};  // key, value, constraint and the nearest valid choice
};

/// What the checks of plans and methods throw; what ends a command for which nobody asked for a
/// value.
struct Refused : InputError {
  explicit Refused(Refusal why) : InputError(why.text), refusal(std::move(why)) {}
  Refusal refusal;
};

/// Throws Refused: "method.KEY: VALUE: WHY".
[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& why);

template <class T>
using Expected = tl::expected<T, Refusal>;

/// What `f` returns, or why the combination that it tried cannot be.
template <class F>
Expected<std::invoke_result_t<F>> unless_refused(F f) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      f();
      return {};
    } else {
      return f();
    }
  } catch (const Refused& refused) {
    return tl::unexpected(refused.refusal);
  }
}

}  // namespace rehearse
