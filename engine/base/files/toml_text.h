// Texts as TOML files state them.
#pragma once
#include <string>
#include <string_view>

namespace rehearse {

/// The text as a basic string of TOML, in its quotes. Plan files are hashed with it, so it never
/// changes.
std::string toml_string(std::string_view text);

}  // namespace rehearse
