// Converts enumerators to names and back. Each enum that files or reports contain has a function
// `spellings` in its own namespace, which returns the names in the order of the enumerators.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rehearse {

template <class E>
constexpr std::string_view name_of(E e) {
  return spellings(e)[static_cast<std::size_t>(e)];
}
template <class E>
std::optional<E> from_name(std::string_view text) {
  const auto all = spellings(E{});
  for (std::size_t i = 0; i < all.size(); ++i)
    if (text == all[i]) return static_cast<E>(i);
  return std::nullopt;
}
template <class E>
std::vector<std::string> names_of() {
  const auto all = spellings(E{});
  return {all.begin(), all.end()};
}

}  // namespace rehearse
