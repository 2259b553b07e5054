// The keys of model files: models/*.toml in the data folder, or the user's own. load_model
// (model.h) reads the files; docs/model.md documents every key.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/model/model.h"

namespace rehearse::model {

/// Hyperparameters that a job states in place of its model file's.
struct ModelChanges {
  std::vector<std::pair<std::string, int>> sizes = {};  // key, value
  std::vector<std::pair<std::string, double>> numbers = {};
};
/// Reads them from a job's section [model].
ModelChanges read_changes(const Config& section);
/// load_model with changes. What depends on a changed key and is not stated gets its default again:
/// key-value heads of heads, the size of a head and the feed-forward width of hidden, padded rows
/// of the vocabulary. The name of a changed model says what was changed.
ModelSpec load_model(const std::string& name_or_path, int seq_len, const ModelChanges& changes);

/// All keys that a model file can have. A test compares the documentation with them.
std::vector<Config::Key> model_keys();

}  // namespace rehearse::model
