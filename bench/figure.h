// Records rows of the table that `make bench` prints at its end (tools/bench).
#pragma once
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace rehearse::bench {

/// One row: a measured value, and the value of a peer or a goal to compare it with.
struct Figure {
  std::string name = {};
  double measured = 0;
  std::string unit = {};
  std::string against = {};  // the peer's name, or "goal"; empty: nothing to compare with
  double reference = 0;      // value of the peer or goal, in the same unit
  bool more_is_better = false;
};

/// Appends the row to the file that REHEARSE_FIGURES names. tools/bench sets this variable; without
/// it, nothing is written.
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
