// Reads one line of a program's text word by word. Errors quote the line.
#pragma once
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::program {

/// All functions throw ProgramError that quotes the line when the next word does not fit.
class TextLine {
 public:
  TextLine(std::string text, int number);

  bool empty() const { return words_.empty(); }
  bool more() const { return next_ < words_.size(); }
  const std::string& peek() const {
    if (!more()) fail("the line ends too early");
    return words_[next_];
  }
  const std::string& take() {
    const std::string& word = peek();
    ++next_;
    return word;
  }
  bool accept(std::string_view word) { return more() && words_[next_] == word && ++next_; }
  /// Takes the name of a `what` (channel, view, ...). Refuses the characters that separate words.
  std::string name(std::string_view what);
  /// Takes the word "key=value" and returns value. The word is required.
  std::string value(std::string_view key);
  /// Like `value`; nullopt: the next word is not "key=...".
  std::optional<std::string> optional(std::string_view key);
  /// Refuses further words.
  void end() const {
    if (more()) fail(fmt::format("unexpected '{}'", peek()));
  }

  template <class T>
  T number(std::string_view text) const {
    return number<T>(text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max());
  }
  template <class T>
  T number(std::string_view text, std::type_identity_t<T> least,
           std::type_identity_t<T> most) const {
    T v{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    const bool whole = end == text.data() + text.size() && !text.empty();
    if (!whole || error == std::errc::invalid_argument)
      fail(fmt::format("'{}' is not a number", text));
    bool fits = error == std::errc{} && v >= least && v <= most;
    if constexpr (std::is_floating_point_v<T>) fits = fits && std::isfinite(v);
    if (!fits) fail(fmt::format("{} is out of range: must be from {} to {}", text, least, most));
    return v;
  }
  template <class E>
  E named(std::string_view text) const {
    if (auto e = from_name<E>(text)) return *e;
    fail(fmt::format("'{}' is not one of {}", text, fmt::join(names_of<E>(), ", ")));
  }

  int line() const { return number_; }
  [[noreturn]] void fail(const std::string& why) const;
  /// Calls `f` and adds this line to its ProgramError.
  template <class F>
  void check(F f) const {
    try {
      f();
    } catch (const ProgramError& error) {
      fail(error.what());
    }
  }

 private:
  std::string text_;
  int number_;
  std::vector<std::string> words_ = {};
  std::size_t next_ = 0;
};

}  // namespace rehearse::program
