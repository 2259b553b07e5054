#include "runtime/control/launch/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace rehearse::runtime {

void RankOutput::drain(RankProcess& p) {
  if (!p.errors) return;
  std::array<char, 4096> piece = {};
  ssize_t n = 0;
  while ((n = read(p.errors.get(), piece.data(), piece.size())) > 0) {
    p.text.append(piece.data(), static_cast<std::size_t>(n));
  }
  const bool end = n == 0 || (errno != EAGAIN && errno != EINTR);
  if (end) p.errors = Fd();
  if (p.rank == 0) {
    // A progress line has no newline, so rank 0's text is shown as it comes, except the start of
    // an error line that another rank may have shown already.
    const auto line = p.text.rfind('\n') + 1;
    const bool error = p.text.compare(line, error_mark.size(), error_mark) == 0;
    emit(p.rank, error && !end ? std::exchange(p.text, p.text.substr(line)).substr(0, line)
                               : std::exchange(p.text, {}));
    return;
  }
  std::size_t newline = 0;
  while ((newline = p.text.find('\n')) != std::string::npos) {
    emit(p.rank, p.text.substr(0, newline + 1));
    p.text.erase(0, newline + 1);
  }
  if (end && !p.text.empty()) emit(p.rank, std::exchange(p.text, {}) + "\n");
}

void RankOutput::emit(int rank, const std::string& text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string line = text.substr(begin, end - begin);
    begin = end;
    const bool error = line.starts_with(error_mark);
    if (error && !said_.insert(line).second) continue;
    const std::string whole = rank == 0  ? line
                              : rank > 0 ? fmt::format("[rank {}] {}", rank, line)
                                         : fmt::format("[spare] {}", line);
    if (error && holds_)
      held_.push_back(whole);
    else
      say(whole);
  }
}

void RankOutput::say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void RankOutput::show_held() {
  for (const std::string& line : std::exchange(held_, {})) say(line);
}

}  // namespace rehearse::runtime
