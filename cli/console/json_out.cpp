#include "cli/console/json_out.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

void check(const Json& json, const std::string& path) {
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

/// The word in quotes if it has characters that are special to a shell.
std::string quoted(const std::string& word) {
  constexpr const char* plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string command_text(const std::vector<std::string>& arguments) {
  std::string out = "rehearse";
  for (std::size_t i = 1; i < arguments.size(); ++i) out += " " + quoted(arguments[i]);
  return out;
}

Json with_header(const Context& context, const Json& json) {
  Json out{{"schema_version", json.at("schema_version")},
           {"version", context.version},
           {"command", command_text(context.arguments)}};
  for (const auto& [key, value] : json.items())
    if (!out.contains(key)) out[key] = value;
  return out;
}

void check_finite(const Json& json) { check(json, ""); }

std::string text_of(const Json& json) {
  check_finite(json);
  return json.dump(2) + "\n";
}

}  // namespace rehearse::cli
