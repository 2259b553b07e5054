// What the linker found in a program, for people and as JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "engine/link.h"

namespace rehearse {

std::string describe(const LinkedProgram& linked);
nlohmann::ordered_json to_json(const LinkedProgram& linked);

}  // namespace rehearse
