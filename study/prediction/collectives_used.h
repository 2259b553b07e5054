// Lists which algorithm each channel's collectives use. A result shows this list for two reasons:
// the bytes that a step sends depend on the algorithm, and an automatic choice depends on the
// cluster.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::study {

/// All collectives of a channel with the same move and the same algorithm.
struct CollectivesUsed {
  std::string group = {};  // the channel's name: "dp", "tp", "dp.gather"
  program::Move move = program::Move::all_reduce;
  program::Algorithm algorithm = program::Algorithm::automatic;
  bool automatic = true;  // chosen by the compiler, not stated in the job
  int ops = 0;            // ops per step, over all roles
};
/// Sorted by channel, in the program's order. The algorithms of `program` must be decided.
/// `stated`: method.collective.
std::vector<CollectivesUsed> collectives_used(const program::Program& program,
                                              program::Algorithm stated);

/// "dp all_reduce ring, tp all_reduce halving_doubling (automatic)"; the last word stands once
/// where it holds for all.
std::string describe(const std::vector<CollectivesUsed>& used);
nlohmann::ordered_json to_json(const std::vector<CollectivesUsed>& used);

}  // namespace rehearse::study
