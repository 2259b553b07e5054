// nlohmann's messages have the form "[json.exception.KIND.NUMBER] what"; those of broken text,
// "[...] parse error at line 3, column 7: what".
#include "engine/base/files/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/base/errors.h"

namespace rehearse {
namespace {

/// "LINE:COLUMN" of the byte at which the parser stopped; `byte` counts from 1.
std::string place_of(const std::string& text, std::size_t byte) {
  const std::string_view before =
      std::string_view(text).substr(0, std::min(text.size(), byte == 0 ? 0 : byte - 1));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1);  // npos + 1 is 0
  return fmt::format("{}:{}", line, column + 1);
}

void check(const nlohmann::ordered_json& json, const std::string& path) {
  if (json.is_number_float() && !std::isfinite(json.get<double>()))
    throw InputError(
        fmt::format("the result {} is {}, not a finite number: a rate, a size or a factor of the "
                    "job, its platform or its profile is out of all proportion",
                    path, json.get<double>()));
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) check(json[i], fmt::format("{}[{}]", path, i));
  if (json.is_object())
    for (const auto& [key, value] : json.items())
      check(value, path.empty() ? key : fmt::format("{}.{}", path, key));
}

}  // namespace

std::string words_of(const nlohmann::json::exception& error) {
  std::string text = error.what();
  if (text.starts_with("[json.exception")) text.erase(0, text.find("] ") + 2);
  if (text.starts_with("parse error")) text.erase(0, text.find(": ") + 2);
  return text;
}

nlohmann::ordered_json parse_json(const std::string& text, const std::string& file) {
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw InputError(
        fmt::format("{}:{}: not JSON: {}", file, place_of(text, error.byte), words_of(error)));
  } catch (const nlohmann::json::exception& error) {  // a number too large for a double
    throw InputError(fmt::format("{}: not JSON: {}", file, words_of(error)));
  }
}

void check_finite(const nlohmann::ordered_json& json) { check(json, ""); }

}  // namespace rehearse
