// Parses JSON files that people may have edited, and checks JSON before it is written. Errors give
// file, line and column, in words that do not mention the JSON library.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace rehearse {

/// Throws InputError: FILE:LINE:COLUMN: not JSON: what was expected there.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& file);
/// The message of a JSON error (wrong type, missing value) without the library's prefix.
std::string words_of(const nlohmann::json::exception& error);
/// Throws InputError with the path of the first number that is not finite: JSON cannot express it.
void check_finite(const nlohmann::ordered_json& json);

}  // namespace rehearse
