// An impossible combination of choices, as an exception (Refused) and as a value (Refusal). A
// search (remedies, planner, advice on a mesh) meets many of them and continues with the next
// combination. Any other error ends the command.
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

/// Thrown by the checks of plans and methods. It ends the command unless a search catches it with
/// `unless_refused`.
struct Refused : InputError {
  explicit Refused(Refusal why) : InputError(why.text), refusal(std::move(why)) {}
  Refusal refusal;
};

/// Throws Refused: "method.KEY: VALUE: WHY".
[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& why);

template <class T>
using Expected = tl::expected<T, Refusal>;

/// Calls `f`. Returns its result, or the Refusal if `f` throws Refused.
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
