#include "cli/console/json_out.h"

#include <fmt/format.h>

#include "engine/base/json_text.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

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

std::string text_of(const Json& json) {
  check_finite(json);
  return json.dump(2) + "\n";
}

}  // namespace rehearse::cli
