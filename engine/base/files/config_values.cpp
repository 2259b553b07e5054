// The typed readers of Config: they check type and range, and say in errors what would fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/base/files/config.h"
#include "engine/base/files/config_source.h"

namespace rehearse {
namespace {

std::string value_text(const toml::node& node) {
  std::ostringstream out;
  if (const auto* number = node.as_floating_point())
    out << fmt::format("{}", number->get());  // as short as it can be read again
  else
    node.visit([&out](const auto& n) { out << n; });
  std::string text = out.str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string text_of(Limits limits, const std::string& unit) {
  const bool low = std::isfinite(limits.least), high = std::isfinite(limits.most);
  std::string text;
  if (low && high && !limits.open) {
    text = fmt::format("from {} to {}", limits.least, limits.most);
  } else {
    if (low) text = fmt::format("{} {}", limits.open ? "above" : "at least", limits.least);
    if (high) text += fmt::format("{}at most {}", low ? " and " : "", limits.most);
  }
  return unit.empty() ? text : text + " " + unit;
}

}  // namespace

void Config::check(const std::string& key, double value, Limits limits,
                   const std::string& unit) const {
  const bool fits =
      value <= limits.most && (limits.open ? value > limits.least : value >= limits.least);
  if (!fits)
    throw error(key,
                fmt::format("{} is out of range: must be {}",
                            value_text(*find(source_->root, full(key))), text_of(limits, unit)));
}

Config Config::section(const std::string& key) const {
  const std::string path = full(key);
  source_->asked.insert(path);
  const toml::node* node = find(source_->root, path);
  if (node != nullptr && !node->is_table())
    throw error(key, fmt::format("{} is {}; must be a table: [{}]", value_text(*node),
                                 kind_of(*node), path));
  return Config(source_, path);
}

std::vector<Config> Config::sections(const std::string& key) const {
  const std::string path = full(key);
  source_->asked.insert(path);
  const toml::node* node = find(source_->root, path);
  if (node == nullptr) return {};
  const toml::array* array = node->as_array();
  if (array == nullptr || !(array->empty() || array->is_homogeneous(toml::node_type::table)))
    throw error(key, fmt::format("{} is {}; must be an array of tables: [[{}]]", value_text(*node),
                                 kind_of(*node), path));
  std::vector<Config> out;
  for (std::size_t i = 0; i < array->size(); ++i) {
    out.push_back(Config(source_, fmt::format("{}[{}]", path, i)));
    source_->asked.insert(out.back().path_);
  }
  return out;
}

bool Config::has(const std::string& key) const { return find(source_->root, full(key)) != nullptr; }

std::string Config::text(const std::string& key, const std::optional<std::string>& fallback,
                         const std::vector<std::string>& one_of) const {
  ask(key, one_of.empty() ? "text" : fmt::format("{}", fmt::join(one_of, ", ")),
      fallback.value_or(""));
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) {
    if (!fallback) throw missing(key);
    return *fallback;
  }
  const auto value = node->value_exact<std::string>();
  if (!value)
    throw error(key, fmt::format("{} is {}; must be a string in quotes", value_text(*node),
                                 kind_of(*node)));
  if (!one_of.empty() && std::find(one_of.begin(), one_of.end(), *value) == one_of.end())
    throw error(key, fmt::format("\"{}\" is not one of {}{}", *value, fmt::join(one_of, ", "),
                                 suggestion(*value, one_of)));
  return *value;
}

std::vector<std::string> Config::texts(const std::string& key) const {
  ask(key, "list of text", "[]");
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return {};
  std::vector<std::string> out;
  const toml::array* array = node->as_array();
  if (array == nullptr || !(array->empty() || array->is_homogeneous(toml::node_type::string)))
    throw error(key, fmt::format("{} is {}; must be a list of strings, as in [\"a\", \"b\"]",
                                 value_text(*node), kind_of(*node)));
  for (const toml::node& element : *array) out.push_back(*element.value<std::string>());
  return out;
}

std::optional<bool> Config::maybe_flag(const std::string& key) const {
  ask(key, "true or false", "");
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return std::nullopt;
  const auto value = node->value_exact<bool>();
  if (!value)
    throw error(key,
                fmt::format("{} is {}; must be true or false", value_text(*node), kind_of(*node)));
  return value;
}

bool Config::flag(const std::string& key, std::optional<bool> fallback) const {
  ask(key, "true or false", fallback ? *fallback ? "true" : "false" : "");
  const std::optional<bool> value = maybe_flag(key);
  if (!value && !fallback) throw missing(key);
  return value ? *value : *fallback;
}

std::optional<std::int64_t> Config::maybe_integer(const std::string& key, Limits limits) const {
  ask(key, "integer", "");
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return std::nullopt;
  const auto value = node->value_exact<std::int64_t>();
  if (!value)
    throw error(key,
                fmt::format("{} is {}; must be an integer", value_text(*node), kind_of(*node)));
  check(key, static_cast<double>(*value), limits);
  return value;
}

std::int64_t Config::integer(const std::string& key, std::optional<std::int64_t> fallback,
                             Limits limits) const {
  ask(key, "integer", fallback ? fmt::format("{}", *fallback) : "");
  const std::optional<std::int64_t> value = maybe_integer(key, limits);
  if (!value && !fallback) throw missing(key);
  return value ? *value : *fallback;
}

std::string Config::word_or_integers(const std::string& key,
                                     const std::vector<std::string>& words) const {
  ask(key, fmt::format("{} or list of integers", fmt::join(words, ", ")), words.front());
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return words.front();
  if (node->is_array()) return "";
  const auto word = node->value_exact<std::string>();
  if (!word || std::find(words.begin(), words.end(), *word) == words.end())
    throw error(key,
                fmt::format("{} is not {} or a list of integers, as in [3, 1]{}", value_text(*node),
                            fmt::join(words, ", "), word ? suggestion(*word, words) : ""));
  return *word;
}

std::vector<std::int64_t> Config::integers(const std::string& key, Limits limits) const {
  ask(key, "list of integers", "[]");
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return {};
  const toml::array* array = node->as_array();
  if (array == nullptr || !(array->empty() || array->is_homogeneous(toml::node_type::integer)))
    throw error(key, fmt::format("{} is {}; must be a list of integers, as in [0, 3]",
                                 value_text(*node), kind_of(*node)));
  std::vector<std::int64_t> out;
  for (const toml::node& element : *array) {
    out.push_back(*element.value<std::int64_t>());
    check(key, static_cast<double>(out.back()), limits);
  }
  return out;
}

double Config::number(const std::string& key, std::optional<double> fallback, Limits limits) const {
  ask(key, "number", fallback ? fmt::format("{}", *fallback) : "");
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) {
    if (!fallback) throw missing(key);
    return *fallback;
  }
  if (!node->is_number())
    throw error(key, fmt::format("{} is {}; must be a number", value_text(*node), kind_of(*node)));
  const double value = *node->value<double>();
  if (!std::isfinite(value)) throw error(key, "must be finite");
  check(key, value, limits);
  return value;
}

template <class T>
T Config::quantity(const std::string& key, const std::optional<T>& fallback, Limits limits,
                   const char* type, const char* unit, T (*parse)(std::string_view)) const {
  std::string absent;
  if constexpr (requires { to_text(*fallback); }) absent = fallback ? to_text(*fallback) : "";
  ask(key, type, absent);
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) {
    if (!fallback) throw missing(key);
    return *fallback;
  }
  const auto written = node->value_exact<std::string>();
  T value;
  try {
    value = parse(written ? *written : value_text(*node));
  } catch (const InputError& e) {
    const bool quoted = written || source_->overrides.contains(full(key));  // --set needs no quotes
    throw error(key, e.what() + std::string(quoted ? "" : "; write it in quotes"));
  }
  check(key, value.value, limits, unit);
  return value;
}

Seconds Config::seconds(const std::string& key, std::optional<Seconds> fallback, Limits l) const {
  return quantity(key, fallback, l, "duration", "s", parse_seconds);
}
Bytes Config::bytes(const std::string& key, std::optional<Bytes> fallback, Limits l) const {
  return quantity(key, fallback, l, "size", "B", parse_bytes);
}
std::optional<double> Config::maybe_number(const std::string& key, Limits l) const {
  ask(key, "number", "");
  return has(key) ? std::optional(number(key, 0, l)) : std::nullopt;
}
std::optional<std::string> Config::maybe_text(const std::string& key,
                                              const std::vector<std::string>& one_of) const {
  ask(key, fmt::format("{}", fmt::join(one_of, ", ")), "");
  return has(key) ? std::optional(text(key, std::nullopt, one_of)) : std::nullopt;
}
std::optional<Bytes> Config::maybe_bytes(const std::string& key, Limits l) const {
  ask(key, "size", "");
  return has(key) ? std::optional(bytes(key, Bytes(0), l)) : std::nullopt;
}
std::optional<Seconds> Config::maybe_seconds(const std::string& key, Limits l) const {
  ask(key, "duration", "");
  return has(key) ? std::optional(seconds(key, Seconds(0), l)) : std::nullopt;
}
BytesPerSecond Config::bandwidth(const std::string& key, std::optional<BytesPerSecond> fallback,
                                 Limits l) const {
  return quantity(key, fallback, l, "bandwidth", "B/s", parse_bandwidth);
}
std::optional<BytesPerSecond> Config::maybe_bandwidth(const std::string& key, Limits l) const {
  ask(key, "bandwidth", "");
  return has(key) ? std::optional(bandwidth(key, BytesPerSecond(0), l)) : std::nullopt;
}
Flops Config::flops(const std::string& key, std::optional<Flops> fallback, Limits l) const {
  return quantity(key, fallback, l, "FLOP", "FLOP", parse_flops);
}
FlopsPerSecond Config::flop_rate(const std::string& key, std::optional<FlopsPerSecond> fallback,
                                 Limits l) const {
  return quantity(key, fallback, l, "FLOP/s", "FLOP/s", parse_flop_rate);
}
Watts Config::watts(const std::string& key, std::optional<Watts> fallback, Limits l) const {
  return quantity(key, fallback, l, "power", "W", parse_watts);
}

}  // namespace rehearse
