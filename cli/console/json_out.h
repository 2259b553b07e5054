// The JSON that commands print. It starts with its schema version, the program's version and the
// command line. It has no infinity and no NaN, which JSON cannot express.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "cli/console/context.h"

namespace rehearse::cli {

/// `json` with the program's version and the command line inserted after its schema_version.
nlohmann::ordered_json with_header(const Context& context, const nlohmann::ordered_json& json);
/// Indented text that ends with a newline. Throws InputError as check_finite does
/// (engine/base/files/json_text.h).
std::string text_of(const nlohmann::ordered_json& json);
/// The command line, quoted for a shell. The program's path becomes "rehearse".
std::string command_text(const std::vector<std::string>& arguments);

}  // namespace rehearse::cli
