// What the members of one collective send each other, as rounds of hops. Two readings of the same
// schedule (engine/collectives): chunk keeps every transfer of every round; fluid joins successive
// rounds between the same pairs into one round with one flow for each pair, which carries the sum
// of their bytes after the sum of their latencies (a ring is one round of n flows of
// 2 (n - 1) / n of the tensor each). In both, a member starts a round when its own hops of the
// rounds before have ended.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/collectives/schedule.h"

namespace rehearse::sim {

struct Hop {
  int from = 0, to = 0;  // members
  double bytes = 0;
  int latencies = 1;  // how often the path's latency is paid before the bytes flow
  /// Bytes of each of the transfers that were joined, which choose the path.
  double each() const { return bytes / latencies; }
};

class Exchange {
 public:
  /// One hop from member 0 to member 1: a send with its receive, or a put.
  explicit Exchange(double bytes);
  /// Every transfer of every round.
  Exchange(std::unique_ptr<const collectives::Schedule> schedule, std::int64_t element_bytes);
  /// Rounds between the same pairs, joined.
  static Exchange joined(const collectives::Schedule& schedule, std::int64_t element_bytes);

  int members() const { return members_; }
  int rounds() const { return rounds_; }
  /// Replace `out` by the hops of a round that `member` takes part in (-1: all).
  void round(int r, int member, std::vector<Hop>& out) const;
  /// Bytes that a member sends and receives.
  double traffic(int member) const { return traffic_[static_cast<std::size_t>(member)]; }

 private:
  Exchange() = default;
  void count();
  int members_ = 2, rounds_ = 1;
  std::unique_ptr<const collectives::Schedule> schedule_ = nullptr;  // chunk
  double element_bytes_ = 1;
  std::vector<double> traffic_ = {};
  std::vector<std::vector<Hop>> hops_ = {};            // fluid: by round
  std::vector<std::vector<std::uint32_t>> mine_ = {};  // fluid: by round * members + member
};

}  // namespace rehearse::sim
