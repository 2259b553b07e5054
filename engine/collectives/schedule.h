// Collective algorithms as pure functions from (move, algorithm, members, elements) to rounds of
// point-to-point transfers. The dry run sums the cost of the rounds, the simulator simulates them,
// and the runtime runs them over send and receive if its library lacks the algorithm. So every
// executor moves the same bytes.
//
// Each member has a tensor of shape (elements). Part i of n is [i * elements / n, (i + 1) *
// elements / n).
//
//   move             before             after
//   all_reduce       partial sums       the sum at every member
//   reduce_scatter   partial sums       part i of the sum at member i
//   all_gather       part i at member i the whole tensor at every member
//   broadcast        tensor at `root`   the tensor at every member
//   reduce           partial sums       the sum at `root`
//   all_to_all       a tensor           part i of each member's tensor at member i, in their order
//   rotate           a tensor           member i's tensor at member i + distance, in a circle
//   gather           part i at member i the whole tensor at `root`
//   scatter          tensor at `root`   part i at member i
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::collectives {

/// Member `from` sends elements [begin, end) of its tensor to member `to`, which adds them to its
/// own elements (`add`) or overwrites its own: elements [begin + shift, end + shift). Only moves
/// that receive into another tensor than the one that they send shift: all_to_all, gather and
/// scatter, where a member but the root has a tensor of its part alone. A rotate does not.
struct Transfer {
  int from = 0, to = 0;
  std::int64_t begin = 0, end = 0;
  bool add = false;
  std::int64_t shift = 0;
};

/// The rounds of one collective. There is no barrier between rounds: a member starts round r when
/// its own transfers of round r - 1 have ended.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual int members() const = 0;
  virtual int rounds() const = 0;
  /// Appends to `out` the transfers of round r that `member` sends or receives (-1: all members),
  /// in the order in which a receiver adds them. No member receives into elements that it sends in
  /// the same round. There are no empty transfers.
  virtual void round(int r, int member, std::vector<Transfer>& out) const = 0;
  /// `times` rounds are alike: they move the same amounts as `round` over the same links, within
  /// one element per transfer. Every round belongs to exactly one Repeat, so a sum of costs needs
  /// only one round of each. By default every round has its own Repeat.
  struct Repeat {
    int round = 0, times = 1;
  };
  virtual std::vector<Repeat> distinct() const;
  /// Elements that `member` sends over all rounds.
  virtual std::int64_t sent(int member) const;
};

/// Whether an algorithm supports a move. double_tree does not support reduce_scatter and
/// all_gather; halving_doubling does not support broadcast and reduce. nvls supports only
/// all_reduce, and only libraries run it: it has no schedule. in_network supports all_reduce,
/// broadcast and reduce; switches run it (engine/costs/network/in_network.h), and its schedule is
/// that of members who emulate them: direct. Only direct supports all_to_all, rotate, gather and
/// scatter.
bool serves(program::Algorithm algorithm, program::Move move);
/// Whether a move is sends from member to member, which no algorithm but direct makes.
constexpr bool only_direct(program::Move move) {
  return move == program::Move::all_to_all || move == program::Move::rotate || parts_of_root(move);
}
/// The algorithm for a move when the plan asks for `wanted`: `wanted` if it supports the move, else
/// automatic. (With ZeRO and double_tree, reduce_scatter and all_gather use another algorithm.)
program::Algorithm algorithm_for(program::Move move, program::Algorithm wanted);

/// The rounds of a collective. `node_of[i]`: the node of member i; only `hierarchical` uses it.
/// `root`: of a rotate, the distance.
/// After a reduce or a reduce_scatter, a member's elements beyond its result are partial sums.
/// `algorithm` must not be automatic. Throws InputError when the algorithm does not support the
/// move, and names those that do; and when the members of an all_to_all would have unequal parts.
std::unique_ptr<const Schedule> schedule(program::Move move, program::Algorithm algorithm,
                                         std::int64_t elements, std::span<const Id> node_of,
                                         int root = 0);

/// [tree][v]: the parent of v in each of the two trees of double_tree.cpp over n members; the root,
/// 0, has none (0).
std::array<std::vector<int>, 2> two_trees(int n);

/// The ring's rounds on several rings at a time (several_rings.cpp). `rings`: permutations of the
/// members, in the order of travel. For all_reduce, reduce_scatter and all_gather.
std::unique_ptr<const Schedule> several_rings(program::Move move,
                                              std::vector<std::vector<int>> rings,
                                              std::int64_t elements);

/// The ring's rounds on a torus of members (torus.cpp), along all dimensions at a time. Member i
/// has the coordinates i mod sizes[0], i / sizes[0] mod sizes[1], and so on. For all_reduce,
/// reduce_scatter and all_gather of at least two members.
std::unique_ptr<const Schedule> torus_rings(program::Move move, std::vector<int> sizes,
                                            std::int64_t elements);

/// The algorithm for `automatic` when only the members' nodes are known. (With a cluster,
/// methods::choose_collectives has decided before the program is linked.) Small payloads, bound by
/// latency, use an algorithm with a logarithmic number of rounds; several nodes with several
/// members each use hierarchical; all others the ring. All ranks choose the same, because it is a
/// pure function.
program::Algorithm choose(program::Move move, std::int64_t bytes, std::span<const Id> node_of);

}  // namespace rehearse::collectives
