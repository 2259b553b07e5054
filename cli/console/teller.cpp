#include "cli/console/teller.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "engine/base/units.h"

namespace rehearse::cli {
namespace {

constexpr std::chrono::seconds interval(10);

}  // namespace

Teller::Teller(const Context& context)
    : way_(context.quiet                ? Way::nothing
           : isatty(STDERR_FILENO) == 1 ? Way::live
                                        : Way::lines) {
  if (way_ == Way::lines)
    clock_ = std::jthread([this](const std::stop_token& stop) { print_lines(stop); });
}

void Teller::done() {
  if (std::exchange(shown_, false)) fmt::print(stderr, "\r\x1b[K");
  const std::lock_guard lock(mutex_);
  text_.clear();
}

void Teller::say(const std::string& live, const std::string& line) {
  if (way_ == Way::live) {
    fmt::print(stderr, "\r\x1b[K{}", live);
    shown_ = true;
  } else if (way_ == Way::lines) {
    const std::lock_guard lock(mutex_);
    text_ = line;
  }
}

void Teller::print_lines(const std::stop_token& stop) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (auto next = begin + interval; !stop.stop_requested(); next += interval) {
    wake_.wait_until(lock, stop, next, [] { return false; });
    if (stop.stop_requested() || text_.empty()) continue;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "... {} ({} so far)\n", text_, to_text(Seconds(elapsed.count())));
  }
}

}  // namespace rehearse::cli
