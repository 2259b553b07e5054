// Prints what the linker found in a program, as text and as JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "engine/link/link.h"

namespace rehearse::study {

/// `with_model`: the program was linked with its model, so its memory includes workspace and
/// batches.
std::string describe(const link::LinkedProgram& linked, bool with_model);
nlohmann::ordered_json to_json(const link::LinkedProgram& linked, bool with_model);

}  // namespace rehearse::study
