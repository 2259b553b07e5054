// The parsed file behind a Config, and helpers for key paths such as "nodes[3].links[0].from".
// Config looks up a TOML node by its path each time: files are small, and messages need the path.
// Private to Config; the only file that includes toml++ (3.3).
#pragma once
#include <fmt/format.h>
#include <toml++/toml.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/terms.h"

namespace rehearse {

struct Config::Source {
  std::string file = {};
  toml::table root = {};
  std::map<std::string, std::string> overrides = {};  // by path: the --set argument
  std::vector<Key> keys = {};
  std::set<std::string> asked = {};  // paths that readers asked for, with array indices
};

inline std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

/// "nodes[3].count" -> "nodes[].count": one name for the key in all tables of an array.
inline std::string without_indices(const std::string& path) {
  std::string out;
  bool inside = false;
  for (char c : path) {
    if (c == ']') inside = false;
    if (!inside) out += c;
    if (c == '[') inside = true;
  }
  return out;
}

inline std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }
inline std::string all_but_last_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

/// The path of the table or array that contains `path`: "a[0].b" -> "a[0]" -> "a".
inline std::string around(const std::string& path) {
  if (path.ends_with(']')) return path.substr(0, path.rfind('['));
  return all_but_last_of(path);
}

inline std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates), note = term_note(word);
  if (!near.empty()) return fmt::format("; did you mean \"{}\"?", near);
  return note.empty() ? note : ": " + note;
}

inline const toml::node* find(const toml::table& root, const std::string& path) {
  return root.at_path(path).node();
}

}  // namespace rehearse
