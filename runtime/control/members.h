// What every rank knows of the others once all have joined. The data connections need it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::runtime {

class Control;

struct MemberInfo {
  std::string host = {};
  std::int64_t pid = 0;
  std::string address = {};  // numeric, reachable from this rank
};

struct Members {
  static const std::vector<MemberInfo>& of(const Control& control);
  /// Random bytes that only the ranks of this run know. They authenticate data connections.
  static const std::string& token(const Control& control);
};

}  // namespace rehearse::runtime
