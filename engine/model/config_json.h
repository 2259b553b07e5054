// Reads the shape of a model from the config.json that Hugging Face's transformers keeps beside the
// weights. load_model (model.h) calls it for paths that end in .json.
#pragma once
#include <string>

#include "engine/model/model.h"

namespace rehearse::model {

/// The hyperparameters that the file states; build_model makes the model. The name is that of the
/// file's folder. Keys that do not change what a model computes are ignored; one that asks for
/// something that these models do not compute is an error. Throws InputError.
ModelSpec read_config_json(const std::string& path);

}  // namespace rehearse::model
