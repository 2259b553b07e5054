// JSON as commands print it: of which version and command it is, and no number in it that JSON
// cannot say.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "cli/console/context.h"

namespace rehearse::cli {

/// schema_version, then version and command, then the rest.
nlohmann::ordered_json signed_by(const Context& context, const nlohmann::ordered_json& json);
/// Throws InputError that names the first number that is not finite.
void check_finite(const nlohmann::ordered_json& json);
/// Checked, indented, with a line end.
std::string text_of(const nlohmann::ordered_json& json);
/// The command line as a shell reads it, the program's folder left out.
std::string command_text(const std::vector<std::string>& arguments);

}  // namespace rehearse::cli
