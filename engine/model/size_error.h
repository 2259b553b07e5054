// A hyperparameter has no possible value. `key`: its name in model files, so that a job that states
// it can name its own key.
#pragma once
#include <string>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse::model {

struct SizeError : InputError {
  SizeError(std::string name, const std::string& what) : InputError(what), key(std::move(name)) {}
  std::string key;
};

}  // namespace rehearse::model
