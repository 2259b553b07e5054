// A row of the table with which `make bench` ends (tools/bench).
#pragma once
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace rehearse::bench {

struct Figure {
  std::string name = {};
  double measured = 0;
  std::string unit = {};
  std::string against = {};  // the peer, or "goal"; empty: nothing to compare with
  double reference = 0;      // of the peer, in the same unit
  bool more_is_better = false;
};

/// Appends a row to the file that tools/bench names; does nothing when a program runs by itself.
inline void record(const Figure& f) {
  const char* path = std::getenv("REHEARSE_FIGURES");
  if (path == nullptr) return;
  nlohmann::ordered_json row = {{"name", f.name}, {"measured", f.measured}, {"unit", f.unit}};
  if (!f.against.empty()) {
    row["against"] = f.against;
    row["reference"] = f.reference;
    row["ratio"] = f.measured / f.reference;
    row["more_is_better"] = f.more_is_better;
  }
  std::ofstream(path, std::ios::app) << row.dump() + "\n";
}

}  // namespace rehearse::bench
