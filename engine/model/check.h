// Which hyperparameters a model can have. Internal to engine/model.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "engine/base/refusal.h"
#include "engine/model/model.h"

namespace rehearse::model {

/// Throws Refused, naming the key and its value, unless `good`.
void require(bool good, const ModelSpec& m, const char* key, auto value, const std::string& rule) {
  if (!good)
    throw Refused({fmt::format("model.{}", key),
                   fmt::format("model {}: {} = {} {}", m.name, key, value, rule)});
}

/// The most that a size of the model may be. Within these limits, products of sizes fit into 64
/// bits.
int most_of(std::string_view key);

/// Throws Refused for hyperparameters that are out of range or do not fit together.
void check(const ModelSpec& model);

}  // namespace rehearse::model
