#include "engine/program/text_line.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace rehearse::program {

namespace {

/// Names end up in JSON, so a text has no other bytes.
bool printable(char c) { return (c >= ' ' && c <= '~') || c == '\t' || c == '\r'; }

}  // namespace

TextLine::TextLine(std::string text, int number) : text_(std::move(text)), number_(number) {
  if (const auto bad = std::find_if_not(text_.begin(), text_.end(), printable);
      bad != text_.end()) {
    const auto byte = static_cast<unsigned char>(*bad);
    const auto column = bad - text_.begin() + 1;
    std::replace_if(
        text_.begin(), text_.end(), [](char c) { return !printable(c); }, '?');
    fail(fmt::format("byte 0x{:02X} in column {}; only printable ASCII", byte, column));
  }
  std::istringstream in(text_);
  for (std::string word; in >> word;) words_.push_back(word);
}

std::string TextLine::name(std::string_view what) {
  const std::string& word = take();
  if (const auto bad = word.find_first_of("#@/=,%!()<>"); bad != std::string::npos)
    fail(fmt::format("the name of a {} has no '{}'", what, word[bad]));
  return word;
}

std::string TextLine::value(std::string_view key) {
  auto v = optional(key);
  if (!v) fail(fmt::format("expected {}=...", key));
  return *v;
}

std::optional<std::string> TextLine::optional(std::string_view key) {
  if (!more()) return std::nullopt;
  const std::string& w = words_[next_];
  if (w.size() <= key.size() || w.compare(0, key.size(), key) != 0 || w[key.size()] != '=')
    return std::nullopt;
  return words_[next_++].substr(key.size() + 1);
}

void TextLine::fail(const std::string& why) const {
  // A line may be very long: quote only its beginning.
  constexpr std::size_t shown = 400;
  throw ProgramError(fmt::format("program text, line {}: {}\n  {}", number_, why,
                                 text_.size() <= shown ? text_ : text_.substr(0, shown) + " ..."));
}

}  // namespace rehearse::program
