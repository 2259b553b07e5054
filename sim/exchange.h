// The transfers of one collective as rounds of hops between its members. A schedule
// (engine/collectives) has two forms here. Chunk keeps every transfer of every round. Fluid joins
// successive rounds between the same pairs and divides them again into at most four: each pair has
// one hop in each, which first waits for the sum of the latencies and then carries the sum of the
// bytes. In both forms a member starts a round when its own hops of the earlier rounds have ended.
// Double trees, whose pairs change from round to round, keep every transfer in both forms.
//
// A ring all-reduce of S bytes over 3 members, 2 (3 - 1) = 4 rounds:
//
//   chunk  round 0   0->1  S/3     1->2  S/3     2->0  S/3     1 latency each
//          round 1   0->1  S/3     1->2  S/3     2->0  S/3     1 latency each
//          round 2   0->1  S/3     1->2  S/3     2->0  S/3     1 latency each
//          round 3   0->1  S/3     1->2  S/3     2->0  S/3     1 latency each
//   fluid  four rounds of the same hops; of 40 rounds, four with 10 latencies and the bytes of 10
//
// A collective that the communication library runs itself has one round in both forms: its flows
// (engine/costs/network/library_collective.h), which begin together after all latencies.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/collectives/schedule.h"
#include "engine/costs/network/library_collective.h"

namespace rehearse::sim {

/// The index of a member, or of its round.
constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Hop {
  int from = 0, to = 0;  // members, by their place in the group
  double bytes = 0;
  int latencies = 1;  // latencies of the path to wait for before the bytes flow; 0: of the library
  Id sum = none;      // number of the tree of switches that carries it; `from` and `to` wait for it
  /// Bytes of one of the transfers that were joined. The path is the fastest for this size.
  double each() const { return bytes / std::max(1, latencies); }
};

class Exchange {
 public:
  /// One hop from member 0 to member 1, for a send with its receive or for a put.
  explicit Exchange(double bytes);
  /// Chunk: every transfer of every round.
  Exchange(std::unique_ptr<const collectives::Schedule> schedule, std::int64_t element_bytes);
  /// The flows of a library's collective among `members`.
  static Exchange of_library(const costs::LibraryCollective& collective, int members);
  /// Fluid: successive rounds between the same pairs, joined.
  static Exchange joined(const collectives::Schedule& schedule, std::int64_t element_bytes);

  int members() const { return members_; }
  int rounds() const { return rounds_; }
  /// Replaces `out` by the hops of round `r` that `member` takes part in; -1: all hops.
  void round(int r, int member, std::vector<Hop>& out) const;
  /// The links that carry the sum of this number.
  const std::vector<Id>& sum_links(Id sum) const { return sums_[sum].links; }
  /// Bytes that a member sends plus bytes that it receives, over all rounds; without sums.
  double traffic(int member) const { return traffic_[static_cast<std::size_t>(member)]; }

 private:
  Exchange(int members, std::vector<std::vector<Hop>> hops);  // [round]
  void count();
  int members_ = 2, rounds_ = 1;
  std::unique_ptr<const collectives::Schedule> schedule_ = nullptr;  // null: the hops are in hops_
  double element_bytes_ = 1;
  std::vector<double> traffic_ = {};
  std::vector<std::vector<Hop>> hops_ = {};  // fluid and library: by round
  std::vector<costs::SumFlow> sums_ = {};
  /// Fluid: a member's hops, by round * members + member.
  std::vector<std::vector<std::uint32_t>> mine_ = {};
};

}  // namespace rehearse::sim
