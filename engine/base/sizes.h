// A name that was given without its size: "gpt2" is "gpt2-124m" and "gpt2-1.5b".
#pragma once
#include <string>
#include <vector>

namespace rehearse {

/// Says which of the known names begin with one of `names` and a hyphen; empty: none does.
std::string sizes_of(const std::vector<std::string>& names, std::vector<std::string> known);

}  // namespace rehearse
