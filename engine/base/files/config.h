// A strict reader of TOML files: jobs, platforms, the device table and model specs. A key is known
// once a reader has asked for it. Any other key in the file is an error, and the message names the
// nearest known key. All messages have the form FILE:LINE: key "section.key": what is wrong and
// what would fit. Only Config itself includes toml++.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/units.h"

namespace rehearse {

/// Which numbers a key accepts: least <= x <= most, or least < x <= most when `open`.
struct Limits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open = false;
};
constexpr Limits at_least(double least) { return {.least = least}; }
constexpr Limits above(double least) { return {.least = least, .open = true}; }
constexpr Limits between(double least, double most) { return {.least = least, .most = most}; }

/// One table of a TOML file. Copies share the file. The typed readers below (text, flag, integer,
/// number, seconds, ...) return `fallback` for an absent key. They throw InputError when the key is
/// absent and has no fallback, has the wrong type, or is outside `limits`.
class Config {
 public:
  /// A key that a reader has asked for. Tests compare the reference documentation with these keys.
  struct Key {
    std::string path = {};  // "method.micro_batches"; "nodes[].count" in an array of tables
    std::string type = {};
    std::string fallback = {};  // what an absent key means; empty: required, or depends on others
  };

  /// `overrides` are "key.path=value" and replace keys of the file before anything is read. The
  /// value is TOML; if it does not parse as TOML it is a string, so method.name=ddp needs no
  /// quotes. "key.path=" removes the key, so its default applies. Throws InputError when the file
  /// cannot be read or is not TOML, or when an override is malformed.
  static Config load(const std::string& path, const std::vector<std::string>& overrides = {});
  static Config parse(const std::string& text, const std::string& file,
                      const std::vector<std::string>& overrides = {});

  /// A table inside this one. An absent table reads as an empty one.
  Config section(const std::string& key) const;
  /// An array of tables. An absent array reads as an empty one.
  std::vector<Config> sections(const std::string& key) const;
  bool has(const std::string& key) const;

  std::string text(const std::string& key, const std::optional<std::string>& fallback,
                   const std::vector<std::string>& one_of = {}) const;
  std::vector<std::string> texts(const std::string& key) const;
  bool flag(const std::string& key, std::optional<bool> fallback) const;
  std::int64_t integer(const std::string& key, std::optional<std::int64_t> fallback,
                       Limits limits = {}) const;
  std::vector<std::int64_t> integers(const std::string& key, Limits limits = {}) const;
  /// One of `words`, which the key may state in place of a list; empty: it states a list, which
  /// `integers` then reads. An absent key is the first word.
  std::string word_or_integers(const std::string& key, const std::vector<std::string>& words) const;
  double number(const std::string& key, std::optional<double> fallback, Limits limits = {}) const;
  /// Like `integer`, for keys whose default depends on other keys; nullopt: the key is absent.
  std::optional<std::int64_t> maybe_integer(const std::string& key, Limits limits = {}) const;
  std::optional<double> maybe_number(const std::string& key, Limits limits = {}) const;
  std::optional<bool> maybe_flag(const std::string& key) const;
  std::optional<std::string> maybe_text(const std::string& key,
                                        const std::vector<std::string>& one_of) const;

  Seconds seconds(const std::string& key, std::optional<Seconds> fallback, Limits = {}) const;
  Bytes bytes(const std::string& key, std::optional<Bytes> fallback, Limits = {}) const;
  std::optional<Bytes> maybe_bytes(const std::string& key, Limits = {}) const;
  std::optional<Seconds> maybe_seconds(const std::string& key, Limits = {}) const;
  BytesPerSecond bandwidth(const std::string& key, std::optional<BytesPerSecond> fallback,
                           Limits = {}) const;
  std::optional<BytesPerSecond> maybe_bandwidth(const std::string& key, Limits = {}) const;
  Flops flops(const std::string& key, std::optional<Flops> fallback, Limits = {}) const;
  FlopsPerSecond flop_rate(const std::string& key, std::optional<FlopsPerSecond> fallback,
                           Limits = {}) const;
  Watts watts(const std::string& key, std::optional<Watts> fallback, Limits = {}) const;

  /// What stands at a key. `table_list`: a list that is not empty and has only tables.
  enum class Shape : std::uint8_t { absent, value, list, table_list, table };
  Shape shape(const std::string& key) const;
  /// The elements of the list at `key`, each as TOML text, for overrides of another file.
  std::vector<std::string> elements(const std::string& key) const;
  /// A value with its path from a table on, as TOML text.
  struct Leaf {
    std::string path = {}, toml = {};
  };
  /// The values and lists in this table and in the tables inside it. All count as asked for.
  std::vector<Leaf> leaves() const;
  /// This table as TOML text, its keys sorted. All its keys count as asked for.
  std::string toml() const;

  /// Names of the keys in this table, in file order.
  std::vector<std::string> names() const;
  /// Throws InputError for the first key of the whole file that no reader has asked for.
  void finish() const;
  /// An error with the message FILE:LINE: key "path": `what`. Readers throw it for constraints that
  /// they check themselves.
  InputError error(const std::string& key, const std::string& what) const;
  /// Where the key was set: "FILE:LINE" or "--set key=value"; "FILE" when the key is absent.
  std::string where(const std::string& key) const;
  /// All keys of the whole file that readers have asked for so far, in the order of asking.
  std::vector<Key> keys() const;
  const std::string& file() const;

 private:
  struct Source;
  Config(std::shared_ptr<Source> source, std::string path);
  std::string full(const std::string& key) const;
  void ask(const std::string& key, const std::string& type, const std::string& fallback) const;
  InputError missing(const std::string& key) const;
  std::string nearest_unasked(const std::string& key) const;
  template <class T>
  T quantity(const std::string& key, const std::optional<T>& fallback, Limits limits,
             const char* type, const char* unit, T (*parse)(std::string_view)) const;
  void check(const std::string& key, double value, Limits limits,
             const std::string& unit = {}) const;

  std::shared_ptr<Source> source_;
  std::string path_;
};

}  // namespace rehearse
