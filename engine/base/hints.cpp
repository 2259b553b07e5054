#include "engine/base/hints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/terms.h"

namespace rehearse {

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

std::string hint_and_all(std::string_view word, const std::vector<std::string>& known,
                         std::string_view intro) {
  const std::string near = nearest(word, known);
  return fmt::format("{}{}: {}", near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near),
                     intro, fmt::join(known, ", "));
}

std::string sizes_of(const std::vector<std::string>& names, std::vector<std::string> known) {
  std::erase_if(known, [&](const std::string& one) {
    return std::ranges::none_of(names, [&](const std::string& name) {
      return folded(one).starts_with(folded(name) + "_");
    });
  });
  return known.empty() ? "" : fmt::format("it comes as {}", fmt::join(known, ", "));
}

}  // namespace rehearse
