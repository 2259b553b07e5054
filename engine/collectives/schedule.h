// A collective algorithm is written once: a pure function from (move, algorithm, members, elements)
// to rounds of point-to-point transfers. The dry run sums its closed form, the simulator plays its
// rounds, the runtime plays them over send and receive where the library has no such algorithm.
// Every executor moves the same bytes because there is nothing else to move.
//
// All moves work on one tensor of `elements` at every member: all_reduce: partial sums -> sum
// everywhere; reduce_scatter: partial sums -> member i holds the sum of part i; all_gather: member
// i holds part i -> everything everywhere; broadcast and reduce: from or to member `root`. Part i
// of n is [i * elements / n, (i + 1) * elements / n).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::collectives {

/// Member `from` sends elements [begin, end) of the tensor to member `to`, which adds them to its
/// own or stores them.
struct Transfer {
  int from = 0, to = 0;
  std::int64_t begin = 0, end = 0;
  bool add = false;
};

/// Rounds are dependent only through the members: a member starts round r when its own transfers of
/// round r - 1 have ended.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual int members() const = 0;
  virtual int rounds() const = 0;
  /// The transfers of a round, all of them or only those that `member` sends or receives (-1: all).
  /// Appends to `out`, in the order in which a receiver adds them up. No member receives into what
  /// it sends in the same round, and empty transfers are left out.
  virtual void round(int r, int member, std::vector<Transfer>& out) const = 0;
  /// Every round stands in exactly one entry: `times` rounds are like `round`, that is, they move
  /// the same amounts (but for one element a transfer) over the same links. A sum of costs looks at
  /// one of each; by default every round is its own.
  struct Repeat {
    int round = 0, times = 1;
  };
  virtual std::vector<Repeat> distinct() const;
  /// Elements that `member` sends over all rounds.
  virtual std::int64_t sent(int member) const;
};

/// Whether an algorithm can play a move: two trees have no parts to scatter, halving and doubling
/// has no root.
bool serves(program::Algorithm algorithm, program::Move move);
/// What a plan's choice of algorithm becomes for one move: `wanted` where it serves the move,
/// otherwise automatic (ZeRO with double_tree: its scattered moves take the fastest of the others).
program::Algorithm algorithm_for(program::Move move, program::Algorithm wanted);

/// `node_of[i]`: the node that member i lies on (hierarchical groups by it; others may ignore it).
/// After a reduce or a reduce_scatter, what a member holds beyond its result is partial sums.
/// `algorithm` must not be automatic. Throws InputError when the algorithm cannot serve the move
/// (names those that can).
std::unique_ptr<const Schedule> schedule(program::Move move, program::Algorithm algorithm,
                                         std::int64_t elements, std::span<const Id> node_of,
                                         int root = 0);

/// What `automatic` means where nothing is known but the nodes (with a cluster at hand,
/// choose_collectives decides before the program is linked): latency-bound payloads take
/// logarithmic algorithms, several nodes with several members each take hierarchical, the rest the
/// ring. A pure function of its arguments: every rank chooses alike.
program::Algorithm choose(program::Move move, std::int64_t bytes, std::span<const Id> node_of);

}  // namespace rehearse::collectives
