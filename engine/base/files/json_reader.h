// A strict reader of JSON. A misspelt, missing or impossible value is an error and never reads as
// zero; every message says in which file and where the value is.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse {

/// Reads one JSON object. It keeps the object's place for messages, and the keys that were asked
/// for, so that done() can refuse unknown keys. Throws InputError.
class JsonReader {
 public:
  using Json = nlohmann::ordered_json;

  JsonReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail("must be an object");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", where_, what));
  }
  const Json& at(const char* key) {
    known_.insert(key);
    auto it = json_.find(key);
    if (it == json_.end()) fail(fmt::format("\"{}\" is missing", key));
    return *it;
  }
  double number(const char* key) {
    const Json& v = at(key);
    if (!v.is_number() || !std::isfinite(v.get<double>()) || v.get<double>() < 0)
      fail(fmt::format("\"{}\" = {}: must be a number >= 0", key, v.dump()));
    return v.get<double>();
  }
  template <class T = int>
  T integer(const char* key, T least = 0, T most = std::numeric_limits<T>::max()) {
    return integer_of(at(key), fmt::format("\"{}\"", key), least, most);
  }
  /// Like `integer`, for a value without a key; `what` is its name in messages.
  template <class T>
  T integer_of(const Json& v, const std::string& what, T least, T most) const {
    if (!v.is_number_unsigned() || v.get<std::uint64_t>() < static_cast<std::uint64_t>(least) ||
        v.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
      fail(most == std::numeric_limits<T>::max()
               ? fmt::format("{} = {}: must be a whole number >= {}", what, v.dump(), least)
               : fmt::format("{} = {}: must be a whole number from {} to {}", what, v.dump(), least,
                             most));
    return v.get<T>();
  }
  std::string text(const char* key) {
    const Json& v = at(key);
    if (!v.is_string()) fail(fmt::format("\"{}\" = {}: must be text", key, v.dump()));
    return v.get<std::string>();
  }
  bool truth(const char* key) {
    const Json& v = at(key);
    if (!v.is_boolean()) fail(fmt::format("\"{}\" = {}: must be true or false", key, v.dump()));
    return v.get<bool>();
  }
  template <class E>
  E choice(const char* key) {
    const std::string value = text(key);
    const auto found = from_name<E>(value);
    if (!found) {
      const std::string near = nearest(value, names_of<E>());
      fail(fmt::format("\"{}\" = \"{}\": unknown; known are {}{}", key, value,
                       fmt::join(names_of<E>(), ", "),
                       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near)));
    }
    return *found;
  }
  template <class F>
  void list(const char* key, F each) {
    const Json& v = at(key);
    if (!v.is_array()) fail(fmt::format("\"{}\" must be a list", key));
    for (std::size_t i = 0; i < v.size(); ++i) {
      JsonReader reader(v[i], fmt::format("{}: {}[{}]", where_, key, i));
      each(reader);
      reader.done();
    }
  }
  void done() const {
    for (const auto& [key, value] : json_.items())
      if (!known_.count(key)) {
        const std::string near = nearest(key, {known_.begin(), known_.end()});
        fail(fmt::format("unknown key \"{}\"{}", key,
                         near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
      }
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> known_ = {};
};

}  // namespace rehearse
