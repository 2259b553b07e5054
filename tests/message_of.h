// For tests of error messages.
#pragma once
#include <string>

#include "engine/base/errors.h"

namespace rehearse::test {

/// The message of the `Error` that a call throws; "no error": it throws none.
template <class Error = InputError, class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace rehearse::test
