// Runs a test's simulation in a child process, because SimGrid simulates once in the life of a
// process.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "sim/processes.h"

namespace rehearse::sim {

/// The result of `simulate`, called in a child process.
inline std::vector<double> isolated(const std::function<std::vector<double>()>& simulate) {
  const std::string bytes = in_processes(1, [&](int) {
    const std::vector<double> values = simulate();
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof(double));
  })[0];
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace rehearse::sim
