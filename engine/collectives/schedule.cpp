// Dispatches (move, algorithm) to its file, and chooses the algorithm for `automatic`.
#include "engine/collectives/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class Nothing : public Schedule {
 public:
  int members() const override { return 1; }
  int rounds() const override { return 0; }
  void round(int, int, std::vector<Transfer>&) const override {}
};

/// "ring, hierarchical and direct do"
std::string those_that_serve(program::Move move) {
  std::vector<std::string_view> names;
  for (const program::Algorithm one :
       {program::Algorithm::ring, program::Algorithm::double_tree,
        program::Algorithm::halving_doubling, program::Algorithm::hierarchical,
        program::Algorithm::direct, program::Algorithm::in_network})
    if (serves(one, move)) names.push_back(name_of(one));
  if (names.size() == 1) return fmt::format("{} does", names[0]);
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {} do", fmt::join(names, ", "), last);
}

}  // namespace

std::vector<Schedule::Repeat> Schedule::distinct() const {
  std::vector<Repeat> all(static_cast<std::size_t>(rounds()));
  for (int r = 0; r < rounds(); ++r) all[static_cast<std::size_t>(r)] = {r, 1};
  return all;
}

std::int64_t Schedule::sent(int member) const {
  std::int64_t elements = 0;
  std::vector<Transfer> transfers;
  for (int r = 0; r < rounds(); ++r) {
    transfers.clear();
    round(r, member, transfers);
    for (const Transfer& t : transfers)
      if (t.from == member) elements += t.end - t.begin;
  }
  return elements;
}

bool serves(program::Algorithm algorithm, program::Move move) {
  if (only_direct(move))
    return algorithm == program::Algorithm::direct || algorithm == program::Algorithm::automatic;
  switch (algorithm) {
    case program::Algorithm::double_tree:
      return move != program::Move::reduce_scatter && move != program::Move::all_gather;
    case program::Algorithm::halving_doubling:
      return !has_root(move);
    case program::Algorithm::nvls:
      return move == program::Move::all_reduce;
    case program::Algorithm::in_network:
      return move != program::Move::reduce_scatter && move != program::Move::all_gather;
    default:
      return true;
  }
}

program::Algorithm algorithm_for(program::Move move, program::Algorithm wanted) {
  return serves(wanted, move) ? wanted : program::Algorithm::automatic;
}

std::unique_ptr<const Schedule> schedule(program::Move move, program::Algorithm algorithm,
                                         std::int64_t elements, std::span<const Id> node_of,
                                         int root) {
  const int n = static_cast<int>(node_of.size());
  assert(n >= 1 && elements >= 0 && root >= 0 && root < n);
  if (!serves(algorithm, move))
    throw InputError(fmt::format("\"{}\" does not serve {}; {}", name_of(algorithm), name_of(move),
                                 those_that_serve(move)));
  if (move == program::Move::all_to_all && elements % n != 0)
    throw InputError(
        fmt::format("an all_to_all of {} elements over {} members: their parts must "
                    "be equal; {} elements would do",
                    elements, n, (elements + n - 1) / n * n));
  if (n == 1) return std::make_unique<Nothing>();
  switch (algorithm) {
    case program::Algorithm::ring:
      return collectives::ring(move, n, elements, root);
    case program::Algorithm::double_tree:
      return collectives::double_tree(move, n, elements, root);
    case program::Algorithm::halving_doubling:
      return collectives::halving_doubling(move, n, elements);
    case program::Algorithm::hierarchical:
      return collectives::hierarchical(move, node_of, elements, root);
    case program::Algorithm::direct:
    case program::Algorithm::in_network:  // members emulate the switches at a root
      return collectives::direct(move, n, elements, root);
    case program::Algorithm::nvls:
      throw InputError(
          "\"nvls\" runs in a switch that sums, by NCCL alone; members cannot play it");
    case program::Algorithm::automatic:
      break;
  }
  assert(false && "automatic must be resolved by choose()");
  return nullptr;
}

program::Algorithm choose(program::Move move, std::int64_t bytes, std::span<const Id> node_of) {
  if (only_direct(move)) return program::Algorithm::direct;
  const auto n = static_cast<std::int64_t>(node_of.size());
  // Each message of a ring has 1/n of the bytes. Sending 32 KiB at 12.5 GB/s takes about as long as
  // the latency of a message, 2.5 us. Below that size, the number of rounds matters more than
  // bytes.
  if (n >= 4 && bytes <= n * 32 * 1024)
    return has_root(move) ? program::Algorithm::double_tree : program::Algorithm::halving_doubling;
  std::map<Id, int> count;
  for (Id node : node_of) ++count[node];
  const bool several = count.size() > 1 && std::all_of(count.begin(), count.end(), [](auto& entry) {
                         return entry.second > 1;
                       });
  return several ? program::Algorithm::hierarchical : program::Algorithm::ring;
}

}  // namespace rehearse::collectives
