#include "engine/calibration/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
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
  return !word.empty() && word.size() < 16 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
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
  /// A line of a size is written in three pieces: a label stands before each of them.
  std::string without_label(const std::string& line) const {
    std::string out = line.substr(label_.size());
    if (label_.empty() || std::isalnum(static_cast<unsigned char>(label_.back())) != 0) return out;
    for (std::size_t at = 0; (at = out.find(label_, at)) != std::string::npos;)
      out = fmt::format("{} {}", out.substr(0, at), out.substr(at + label_.size()));
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
    if (!out && !columns_of(line).empty()) out = line.substr(0, line.find('#'));
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
