// What messages about unknown names end with: the names that may have been meant.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace rehearse {

/// "; did you mean \"paper\"?", with the nearest of the known names; empty: none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);
/// "did you mean \"paper\"? known: paper, paper-homogeneous". `intro`: the text before the names.
std::string hint_and_all(std::string_view word, const std::vector<std::string>& known,
                         std::string_view intro = "known");
/// "it comes as gpt2-1.5b, gpt2-124m": the known names that are one of `names` with a size after
/// it; empty: there are none.
std::string sizes_of(const std::vector<std::string>& names, std::vector<std::string> known);

}  // namespace rehearse
