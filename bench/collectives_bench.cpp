// Measures how long a schedule takes to tell the bytes that one member sends, for each move and
// algorithm, in groups of 8,191 and of 65,535 members: CPU seconds of one core. The price of a
// collective uses these bytes. They must come from a formula: a sum over the rounds of 65,535
// members takes a quarter of an hour. So the larger group may take at most four times as long for a
// member (it has eight times the members and nodes), which the figure compares.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "bench/figure.h"
#include "engine/base/names.h"
#include "engine/collectives/schedule.h"

namespace {

using namespace rehearse;

/// CPU seconds of this single-threaded process.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Seconds to build the schedule and to ask every seventh member, for each member asked.
double seconds_of(program::Move move, program::Algorithm algorithm, int members) {
  std::vector<Id> node_of;
  for (int i = 0; i < members; ++i) node_of.push_back(static_cast<Id>(i / 8));
  const double began = now();
  const auto schedule = collectives::schedule(move, algorithm, std::int64_t{members} * 64, node_of);
  std::int64_t bytes = 0;
  int asked = 0;
  for (int member = 0; member < members; member += 7, ++asked) bytes += schedule->sent(member);
  const double seconds = (now() - began) / asked;
  return bytes > 0 ? seconds : -1;
}

}  // namespace

int main() {
  using program::Algorithm;
  using program::Move;
  double worst = 0;
  for (const Move move : {Move::all_reduce, Move::reduce_scatter, Move::all_gather, Move::broadcast,
                          Move::reduce, Move::all_to_all})
    for (const Algorithm algorithm :
         {Algorithm::ring, Algorithm::double_tree, Algorithm::halving_doubling,
          Algorithm::hierarchical, Algorithm::direct, Algorithm::in_network}) {
      if (!collectives::serves(algorithm, move)) continue;
      const double few = seconds_of(move, algorithm, 8'191);
      const double many = seconds_of(move, algorithm, 65'535);
      fmt::print("  {:<15} {:<17} {:8.2f} us a member of 8,191, {:8.2f} of 65,535: {:.1f} times\n",
                 name_of(move), name_of(algorithm), 1e6 * few, 1e6 * many, many / few);
      worst = std::max(worst, many / few);
    }
  bench::record({.name = "time to tell a member's bytes, 65,535 members against 8,191",
                 .measured = worst,
                 .unit = "times",
                 .against = "goal",
                 .reference = 4});
  return worst > 4 ? 1 : 0;
}
