#include "engine/calibration/file_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/files/csv.h"
#include "engine/calibration/nccl_tests.h"

namespace rehearse::calibration {
namespace {

constexpr std::size_t most_names = 8, most_characters = 40, beginning = 4096;

/// The first names, each in quotation marks where `mark` is one.
std::string names_text(const std::vector<std::string>& names, const char* mark) {
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), most_names); ++i)
    out += fmt::format("{}{}{}{}", i == 0 ? "" : ", ", mark, names[i].substr(0, most_characters),
                       mark);
  return out + (names.size() > most_names ? ", ..." : "");
}

std::string object_text(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys.empty() ? "no keys" : "the keys " + names_text(keys, "\"");
}

/// Of a text that begins as JSON.
std::string json_text(const std::string& text) {
  const auto parsed = [](std::string_view part) {
    return nlohmann::json::parse(part, nullptr, false);
  };
  std::size_t wrong = 0;
  try {
    const nlohmann::json all = nlohmann::json::parse(text);
    return all.is_object() ? "a JSON object with " + object_text(all) : "a JSON list";
  } catch (const nlohmann::json::parse_error& error) {
    wrong = error.byte;
  } catch (const nlohmann::json::exception&) {
    return "JSON with a number that is too large";
  }
  const std::size_t first = text.find('{'), end = text.find('\n', std::min(first, text.size()));
  if (end < wrong) {
    const nlohmann::json line = parsed(std::string_view(text).substr(first, end - first));
    if (line.is_object()) return "JSON lines, an object a line, with " + object_text(line);
  }
  if (wrong > text.find_last_not_of(" \t\r\n") + 1)
    return fmt::format("JSON that is cut off: it ends after {} bytes, before its brackets close",
                       text.size());
  return fmt::format(
      "no JSON from line {} on",
      1 + std::count(text.begin(),
                     text.begin() + static_cast<std::ptrdiff_t>(std::min(wrong, text.size())),
                     '\n'));
}

bool is_binary(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return code < ' ' && c != '\t' && c != '\n' && c != '\r';
  });
}

std::string_view first_line(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  text.remove_prefix(std::min(first, text.size()));
  return text.substr(0, text.find_first_of("\r\n"));
}

}  // namespace

FileForm form_of(const std::string& text) {
  if (text.starts_with("\x1f\x8b")) return {Form::other, "compressed with gzip; unpack it first"};
  if (text.starts_with("PK\x03\x04")) return {Form::other, "an archive; unpack it first"};
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    return {Form::other, "text in UTF-16; save it as UTF-8"};
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {Form::other, "empty"};
  if (is_nccl_output(text)) return {Form::nccl_output, "output of nccl-tests"};
  if (is_binary(std::string_view(text).substr(0, beginning))) return {Form::other, "binary"};
  if (text[first] == '{' || (text[first] == '[' && nlohmann::json::accept(text)))
    return {Form::json, json_text(text)};
  const std::string_view line = first_line(text);
  for (const auto& [separator, name] : {std::pair(';', "semicolons"), {'\t', "tabs"}})
    if (line.find(separator) != line.npos && line.find(',') == line.npos)
      return {Form::other,
              fmt::format("a table with {} between its columns; save it with commas", name)};
  try {
    const CsvTable table = parse_csv(std::string(line), "");
    if (table.columns.size() > 1)
      return {Form::table, "a table with the columns " + names_text(table.columns, "")};
  } catch (const InputError&) {
  }
  return {Form::other,
          fmt::format("text that begins with \"{}\"", line.substr(0, most_characters))};
}

}  // namespace rehearse::calibration
