// What a refusal says, for tests of messages.
#pragma once
#include <string>

#include "engine/base/errors.h"

namespace rehearse::test {

/// The message of the error that a call throws; "no error" when it throws none.
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
