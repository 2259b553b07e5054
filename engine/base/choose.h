// Reads keys of a TOML file whose values are names of an enum.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/names.h"

namespace rehearse {

/// The value that the key names; of a missing key, `fallback`: without one, the first value.
template <class E>
E choose(const Config& c, const std::string& key, E fallback = E{}) {
  return *from_name<E>(c.text(key, std::string(name_of(fallback)), names_of<E>()));
}

/// All values that the key lists. Throws InputError for a name that is not known.
template <class E>
std::vector<E> choose_all(const Config& c, const std::string& key) {
  std::vector<E> out;
  for (const std::string& name : c.texts(key)) {
    const std::optional<E> one = from_name<E>(name);
    if (!one)
      throw c.error(
          key, fmt::format("\"{}\" is not known; known: {}", name, fmt::join(names_of<E>(), ", ")));
    out.push_back(*one);
  }
  return out;
}

}  // namespace rehearse
