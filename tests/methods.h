// Tests that run once for every registered method.
#pragma once
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "engine/strategy.h"

namespace rehearse {

inline std::vector<std::string> all_methods() {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : strategies()) names.push_back(name);
  return names;
}

/// A method's name as a test's.
inline std::string method_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

}  // namespace rehearse
