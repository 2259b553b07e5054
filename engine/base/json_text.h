// JSON that people wrote or damaged: what is wrong with it is said with file, line and column, in
// words that do not name the library that reads it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace rehearse {

/// Throws InputError: FILE:LINE:COLUMN: not JSON: what was expected there.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& file);
/// What a value of the wrong kind, or a missing one, is refused with.
std::string words_of(const nlohmann::json::exception& error);

}  // namespace rehearse
