// Model files: models/*.toml of the data folder, or the user's own. load_model (model.h) reads
// them; the format is documented, key by key, in docs/model.md.
#pragma once
#include <vector>

#include "engine/base/config.h"

namespace rehearse::model {

/// Every key that a model file can have: the documentation is tested against it.
std::vector<Config::Key> model_keys();

}  // namespace rehearse::model
