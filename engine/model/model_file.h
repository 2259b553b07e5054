// The keys of model files: models/*.toml in the data folder, or the user's own. load_model
// (model.h) reads the files; docs/model.md documents every key.
#pragma once
#include <vector>

#include "engine/base/config.h"

namespace rehearse::model {

/// All keys that a model file can have. A test compares the documentation with them.
std::vector<Config::Key> model_keys();

}  // namespace rehearse::model
