#include "cli/console/json_out.h"

#include "cli/console/spawn.h"
#include "engine/base/files/json_text.h"

namespace rehearse::cli {

using Json = nlohmann::ordered_json;

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
