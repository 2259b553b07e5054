// Reads a file, applies its overrides, finds where a key was set, and reports unknown keys.
#include "engine/base/files/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "engine/base/files/config_source.h"
#include "engine/base/files/files.h"
#include "engine/base/files/foreign.h"

namespace rehearse {
namespace {

/// Sets `key` to the value of `--set key=VALUE`, which is TOML or a bare word.
void insert(toml::table& table, const std::string& key, const std::string& value) {
  try {
    toml::table parsed = toml::parse("value = " + value);
    if (parsed.size() == 1) {
      table.insert_or_assign(key, std::move(*parsed.get("value")));
      return;
    }
  } catch (const toml::parse_error&) {  // NOLINT(bugprone-empty-catch): a bare word
  }
  const std::string_view digits = std::string_view(value).substr(value.starts_with('-') ? 1 : 0);
  if (digits.size() > 18 && digits.find_first_not_of("0123456789") == std::string_view::npos)
    throw InputError(fmt::format("--set {}={}: must be a whole number below 2^63", key, value));
  table.insert_or_assign(key, value);
}

void apply(toml::table& root, const std::string& file, const std::string& override_text,
           std::map<std::string, std::string>& overrides) {
  const auto equals = override_text.find('=');
  const std::string path = override_text.substr(0, equals);
  if (equals == std::string::npos || path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos)
    throw InputError(
        fmt::format("--set {}: must be key.path=value, as in method.pp=2", override_text));
  toml::table* table = &root;
  std::string done;
  std::istringstream parts(all_but_last_of(path));
  for (std::string part; std::getline(parts, part, '.');) {
    done = join(done, part);
    if (!table->contains(part)) table->insert(part, toml::table());
    table = (*table)[part].as_table();
    if (table == nullptr)
      throw InputError(
          fmt::format("--set {}: key \"{}\" of {} is not a table", override_text, done, file));
  }
  if (equals + 1 == override_text.size())
    table->erase(last_of(path));  // the key is absent now, so its default applies
  else
    insert(*table, last_of(path), override_text.substr(equals + 1));
  overrides[path] = "--set " + override_text;
}

}  // namespace

Config::Config(std::shared_ptr<Source> source, std::string path)
    : source_(std::move(source)), path_(std::move(path)) {}

Config Config::load(const std::string& path, const std::vector<std::string>& overrides) {
  return parse(read_file(path), path, overrides);
}

Config Config::parse(const std::string& text, const std::string& file,
                     const std::vector<std::string>& overrides) {
  auto source = std::make_shared<Source>();
  source->file = file;
  try {
    source->root = toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    refuse_measurements(text, file);
    refuse_other_syntax(text, file);
    throw InputError(fmt::format("{}:{}:{}: not TOML: {}", file, e.source().begin.line,
                                 e.source().begin.column, e.description()));
  }
  for (const std::string& one : overrides) apply(source->root, file, one, source->overrides);
  return Config(source, {});
}

std::string Config::full(const std::string& key) const { return join(path_, key); }

void Config::ask(const std::string& key, const std::string& type,
                 const std::string& fallback) const {
  const std::string path = full(key), plain = without_indices(path);
  source_->asked.insert(path);
  const bool known = std::any_of(source_->keys.begin(), source_->keys.end(),
                                 [&](const Key& k) { return k.path == plain; });
  if (!known) source_->keys.push_back({plain, type, fallback});
}

std::string Config::where(const std::string& key) const {
  const std::string path = full(key);
  // An override of a table also sets all keys inside the table.
  for (std::string p = path; !p.empty(); p = around(p))
    if (const auto it = source_->overrides.find(p); it != source_->overrides.end())
      return it->second;
  for (std::string p = path; !p.empty(); p = around(p)) {
    const toml::node* node = find(source_->root, p);
    if (node == nullptr) continue;
    // Nobody sees the lines of a text that a program made, such as "<job>".
    if (const auto line = node->source().begin.line; line != 0)
      return source_->file.starts_with('<') ? source_->file
                                            : fmt::format("{}:{}", source_->file, line);
    const auto maker = source_->overrides.lower_bound(p + ".");  // a table that --set made
    if (maker != source_->overrides.end() && maker->first.starts_with(p + "."))
      return maker->second;
  }
  return source_->file;
}

InputError Config::error(const std::string& key, const std::string& what) const {
  return InputError(fmt::format("{}: key \"{}\": {}", where(key), full(key), what));
}

std::string Config::nearest_unasked(const std::string& key) const {
  std::vector<std::string> unknown;
  for (const std::string& name : names())
    if (!source_->asked.contains(full(name))) unknown.push_back(name);
  return nearest(key, unknown);
}

InputError Config::missing(const std::string& key) const {
  const auto unknown = [](const Config& table, const std::string& near, const std::string& meant) {
    return table.error(near, fmt::format("unknown; did you mean \"{}\"?", meant));
  };
  if (const std::string near = nearest_unasked(key); !near.empty())
    return unknown(*this, near, key);
  // If the section is misspelt, all its keys are missing: name the section, not the key.
  for (std::string path = path_; !path.empty() && !path.ends_with(']'); path = around(path)) {
    const Config outer(source_, all_but_last_of(path));
    const std::string section = last_of(path);
    if (outer.has(section)) continue;
    if (const std::string near = outer.nearest_unasked(section); !near.empty())
      return unknown(outer, near, section);
  }
  // Another section may be misspelt, of which nothing is missing yet.
  const Config file(source_, {});
  std::vector<std::string> absent;
  for (const std::string& asked : source_->asked)
    if (asked.find('.') == std::string::npos && !file.has(asked)) absent.push_back(asked);
  for (const std::string& name : file.names()) {
    if (source_->asked.contains(name)) continue;
    if (const std::string meant = nearest(name, absent); !meant.empty())
      return unknown(file, name, meant);
  }
  // A few other keys may be this one under another name.
  constexpr std::size_t few = 4;
  std::vector<std::string> others = names();
  std::erase_if(others, [&](const std::string& one) { return source_->asked.contains(full(one)); });
  std::string hint;
  if (!others.empty() && others.size() <= few)
    hint = fmt::format("; the section has {}", fmt::join(others, ", "));
  return error(key, "is required and missing" + hint);
}

std::vector<std::string> Config::names() const {
  const toml::node* node = path_.empty() ? &source_->root : find(source_->root, path_);
  const toml::table* table = node == nullptr ? nullptr : node->as_table();
  std::vector<std::pair<toml::source_index, std::string>> found;
  if (table != nullptr)
    for (const auto& [key, value] : *table)
      found.emplace_back(value.source().begin.line, std::string(key.str()));
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  out.reserve(found.size());
  for (auto& [line, key] : found) out.push_back(std::move(key));
  return out;
}

void Config::finish() const {
  // Suggests a key of the same table or, for a key in the wrong section, a key of the whole file.
  const auto unknown = [&](const Config& table, const std::string& key) {
    const std::string prefix = without_indices(table.path_);
    std::vector<std::string> here;
    std::string elsewhere;
    for (const std::string& asked : source_->asked) {
      const std::string path = without_indices(asked);
      if (all_but_last_of(path) == prefix && path.back() != ']') here.push_back(last_of(path));
      if (last_of(path) == key && elsewhere.empty()) elsewhere = path;
    }
    std::sort(here.begin(), here.end());
    here.erase(std::unique(here.begin(), here.end()), here.end());
    std::string hint = suggestion(key, here);
    if (!elsewhere.empty() && term_note(key).empty())
      hint = fmt::format("; did you mean \"{}\"?", elsewhere);
    if (hint.empty()) hint = fmt::format("; known here: {}", fmt::join(here, ", "));
    return table.error(key, "unknown" + hint);
  };
  const auto visit = [&](const auto& self, const Config& table) -> void {
    for (const std::string& key : table.names()) {
      const std::string path = table.full(key);
      if (!source_->asked.contains(path)) throw unknown(table, key);
      const toml::node* node = find(source_->root, path);
      if (node == nullptr) throw unknown(table, key);  // a quoted key with a dot
      if (node->is_table()) self(self, Config(source_, path));
      if (const toml::array* array = node->as_array())
        for (std::size_t i = 0; i < array->size(); ++i)
          if (source_->asked.contains(fmt::format("{}[{}]", path, i)))
            self(self, Config(source_, fmt::format("{}[{}]", path, i)));
    }
  };
  visit(visit, Config(source_, {}));
}

std::vector<Config::Key> Config::keys() const { return source_->keys; }
const std::string& Config::file() const { return source_->file; }

}  // namespace rehearse
