// Which algorithm each group's collectives play. How many bytes a step sends depends on it, and an
// automatic choice on the cluster's bandwidths and latencies, so a result has to say.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::cli {

/// All collectives of a channel that move alike and play the same algorithm.
struct CollectivesUsed {
  std::string group = {};  // the channel: "dp", "tp", "dp.gather"
  program::Move move = program::Move::all_reduce;
  program::Algorithm algorithm = program::Algorithm::automatic;
  int ops = 0;  // a step, in the programs of all roles
};
/// By channel, in the program's order. `program` is one whose algorithms are decided.
std::vector<CollectivesUsed> collectives_used(const program::Program& program);

/// "dp all_reduce ring, tp all_reduce halving_doubling".
std::string describe(const std::vector<CollectivesUsed>& used);
nlohmann::ordered_json to_json(const std::vector<CollectivesUsed>& used, bool automatic);

}  // namespace rehearse::cli
