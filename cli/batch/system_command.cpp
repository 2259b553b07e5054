#include "cli/batch/system_command.h"

#include <fmt/format.h>

#include "cli/batch/batch_system.h"
#include "engine/base/errors.h"

namespace rehearse::cli {

std::string ranges_of(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    if (!out.empty()) out += ',';
    out += std::to_string(numbers[i]);
    if (end > i + 1) out += fmt::format("-{}", numbers[end - 1]);
  }
  return out;
}

Finished call_system(const std::string& system, const std::vector<std::string>& command,
                     const std::string& install) {
  Finished out = run_program(command, true, ProcessGroup::own);
  if (out.status == 127)
    throw InputError(fmt::format("--on {}: {}. {}", system, last_line(out.output), install));
  return out;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const std::size_t before = text.find_last_of('\n', end);
  return text.substr(before + 1, end - before);
}

std::vector<std::string> words_of(const std::string& text, const std::string& flag) {
  std::vector<std::string> out;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
      begun = true;
    } else if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (begun) out.push_back(word);
      word.clear();
      begun = false;
    } else {
      word += c;
      begun = true;
    }
  }
  if (quote != 0) throw InputError(fmt::format("{} {}: a quote has no end", flag, text));
  if (begun) out.push_back(word);
  return out;
}

}  // namespace rehearse::cli
