#include "engine/calibration/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse::calibration {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// How many characters of `text` have this shape from its beginning on: 9 is any digit. 0: not it.
std::size_t shape(std::string_view text, std::string_view shape) {
  if (text.size() < shape.size()) return 0;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == '9' ? !is_digit(text[i]) : text[i] != shape[i]) return 0;
  return shape.size();
}

std::size_t digits(std::string_view text) {
  return std::size_t(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
}

/// The length of a date or a time of day, with fraction and zone, or of seconds since 1970, at the
/// beginning of `text`; 0: there is none.
std::size_t moment(std::string_view text) {
  for (const char* date : {"9999-99-99", "9999/99/99"})
    if (const std::size_t length = shape(text, date); length > 0)
      return length + (shape(text.substr(length), "T9") > 0 ? 1 : 0);
  const auto fraction = [&](std::size_t at) {
    if (at >= text.size() || (text[at] != '.' && text[at] != ',')) return at;
    return at + 1 + digits(text.substr(at + 1));
  };
  if (shape(text, "9999999999.9") > 0) return fraction(10);
  if (shape(text, "99:99:99") == 0) return 0;
  const std::size_t end = fraction(8);
  const std::string_view zone = text.substr(end);
  if (zone.starts_with('Z')) return end + 1;
  for (const char* offset : {"+99:99", "-99:99", "+9999", "-9999"})
    if (const std::size_t length = shape(zone, offset); length > 0) return end + length;
  return end;
}

/// The line without the dates and times that a launcher writes, which differ from line to line.
std::string without_moments(const std::string& line) {
  std::string out;
  for (std::size_t at = 0; at < line.size();) {
    const bool inside = !out.empty() && is_digit(out.back());  // a number, as 0000:07:00
    const std::size_t length = inside ? 0 : moment(std::string_view(line).substr(at));
    if (length == 0) out += line[at];
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

/// The words after the # of a line that names the columns; empty: another line. A launcher may have
/// put a label before the #.
std::vector<std::string> columns_of(const std::string& line) {
  const std::size_t mark = line.find('#');
  if (mark == std::string::npos) return {};
  std::vector<std::string> words = words_of(line.substr(mark + 1));
  if (words.size() < 4 || words[0] != "size" || words[1] != "count") return {};
  return words;
}

std::size_t index_of(const std::vector<std::string>& columns, const std::string& name) {
  return std::size_t(std::find(columns.begin(), columns.end(), name) - columns.begin());
}

std::optional<double> number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || !std::isfinite(value)) return {};
  return value;
}

bool is_count(const std::string& word) {
  return !word.empty() && word.size() < 16 && std::all_of(word.begin(), word.end(), is_digit);
}

/// The name here of what a program of nccl-tests measures.
std::string move_of(std::string program) {
  if (program == "alltoall") return "all_to_all";
  if (program == "sendrecv") return "rotate";
  return program;
}

class LineReader {
 public:
  /// `label`: before each piece that the program writes, as of mpirun --tag-output.
  LineReader(const std::string& file, std::string label) : file_(file), label_(std::move(label)) {
    label_.erase(label_.find_last_not_of(" \t") + 1);
  }

  void read(std::string line) {
    ++line_;
    line = without_moments(line);
    if (!line.starts_with(label_)) return;
    line = without_label(line);
    if (const auto columns = columns_of(line); !columns.empty()) {
      columns_ = columns;
      return;
    }
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) return;
    if (words[0] == "#")
      read_comment(words);
    else if (!columns_.empty() && words.size() > 1 && is_count(words[0]) && is_count(words[1]))
      read_size(words);
  }
  NcclOutput done() {
    if (out_.times.empty())
      throw InputError(
          fmt::format("{}: no line of a size follows the line \"# size count type "
                      "...\" of nccl-tests",
                      file_));
    return std::move(out_);
  }

 private:
  /// A line of a size is written in three pieces: a label stands before each of them. Of several
  /// labels, as of srun --label and mpirun --tag-output, the last one.
  std::string without_label(const std::string& line) const {
    std::string out = line.substr(label_.size());
    if (label_.empty() || std::isalnum(static_cast<unsigned char>(label_.back())) != 0) return out;
    for (const std::string& label : {label_, label_.substr(label_.find_last_of(" \t") + 1)})
      for (std::size_t at = 0; (at = out.find(label, at)) != std::string::npos;)
        out = fmt::format("{} {}", out.substr(0, at), out.substr(at + label.size()));
    return out;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}:{}: {}", file_, line_, what));
  }
  void read_comment(const std::vector<std::string>& words) {
    // "#  Rank  0 Group  0 Pid 1234 on node device  0 [0x07] NVIDIA A100"
    if (words.size() > 2 && words[1] == "Rank" && is_count(words[2])) ++out_.ranks;
    // "# Collective test starting: all_reduce_perf"
    const std::string& last = words.back();
    if (words.size() == 5 && words[1] == "Collective" && last.ends_with("_perf"))
      out_.move = move_of(last.substr(0, last.size() - 5));
  }
  double field(const std::vector<std::string>& words, const std::string& column) const {
    const std::size_t at = index_of(columns_, column);
    if (at >= words.size())
      fail(fmt::format("{} columns; the line that names them has \"{}\" as its {}th", words.size(),
                       column, at + 1));
    const auto value = number(words[at]);
    if (!value) fail(fmt::format("{} = \"{}\" must be a number", column, words[at]));
    return *value;
  }
  program::DType dtype(const std::string& type) const {
    if (type == "float") return program::DType::f32;
    if (type == "half") return program::DType::f16;
    if (type == "bfloat16") return program::DType::bf16;
    fail(fmt::format("type \"{}\": predictions know float, half and bfloat16 (-d of nccl-tests)",
                     type));
  }
  void read_size(const std::vector<std::string>& words) {
    NcclTime one{.line = line_, .bytes = static_cast<std::int64_t>(field(words, "size"))};
    one.seconds = field(words, "time") * 1e-6;
    one.dtype = dtype(words.at(std::min(index_of(columns_, "type"), words.size() - 1)));
    const std::size_t wrong = index_of(columns_, "#wrong");
    if (wrong < words.size() && words[wrong] != "N/A" && number(words[wrong]).value_or(1) != 0)
      fail(fmt::format("#wrong = {}: the collective gave wrong results, so its time says nothing",
                       words[wrong]));
    if (one.bytes == 0) return;  // what -b 0 prints
    if (one.seconds <= 0) fail("time must be above 0");
    out_.times.push_back(one);
  }

  const std::string& file_;
  std::string label_;
  int line_ = 0;
  std::vector<std::string> columns_ = {};
  NcclOutput out_ = {};
};

template <class F>
void each_line(const std::string& text, F f) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) f(line);
}

/// What stands before the # of the line that names the columns; none: there is no such line.
std::optional<std::string> label_of(const std::string& text) {
  std::optional<std::string> out;
  each_line(text, [&](const std::string& line) {
    if (out || columns_of(line).empty()) return;
    const std::string same = without_moments(line);
    out = same.substr(0, same.find('#'));
  });
  return out;
}

}  // namespace

bool is_nccl_output(const std::string& text) { return label_of(text).has_value(); }

NcclOutput read_nccl_output(const std::string& text, const std::string& file) {
  LineReader reader(file, label_of(text).value_or(""));
  each_line(text, [&](const std::string& line) { reader.read(line); });
  return reader.done();
}

}  // namespace rehearse::calibration
