// What every rank knows of the others once all have joined. The data connections need it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/control/net/secret.h"

namespace rehearse::runtime {

class Control;

struct MemberInfo {
  std::string host = {};
  std::int64_t pid = 0;
  std::string address = {};  // numeric, reachable from this rank
};

struct Members {
  static const std::vector<MemberInfo>& of(const Control& control);
  /// By which the data connections of this start prove that they belong to it.
  static const Secret& data_secret(const Control& control);
  /// Where this rank listens for the others.
  static std::string address(const Control& control);
};

}  // namespace rehearse::runtime
