// What a role does in each step, summed over its ranks: seconds of compute, seconds in which an op
// that communicates runs or the rank computes, and joules. Internal: part of MetricsSink.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/dry_run/fold.h"
#include "engine/execution/measure/occupancy.h"
#include "engine/link/link.h"

namespace rehearse::execution {

/// Power of the devices of a role, in watts.
struct Power {
  double idle = 0;                   // summed over ranks
  std::vector<double> working = {};  // busy minus idle, by place; one entry if all are equal

  /// `ranks`: how many ranks with such devices the place stands for.
  void add(const cluster::DeviceKind& kind, double ranks);
  void squeeze();
  /// Joules of `working` while an op ran that took `seconds` on all places together.
  double work(Id first, std::span<const double> starts, std::span<const double> ends,
              double seconds) const;
};

/// In one step.
struct Share {
  double busy = 0, covered = 0;  // seconds
  double joules = 0;             // above idle power

  Share& operator+=(const Share& other) {
    busy += other.busy, covered += other.covered, joules += other.joules;
    return *this;
  }
};

struct RoleShares {
  enum Kind : std::uint8_t { other, compute, communication, serving };

  Id compute_lane = none;               // none: a server
  std::size_t places = 0;               // of the records: ranks, or classes of a fold
  std::vector<double> sizes = {};       // by class of a fold; empty: each place is one rank
  std::vector<std::uint8_t> kind = {};  // by op: how it is counted
  Occupancy occupancy = {0, 1};
  std::vector<Share> shares = {};  // by step
  Power power = {};

  /// Returns whether the power of all its devices is known. `fold`: null where places are ranks.
  bool build(const link::OrderedProgram& linked, Id role, const cluster::Cluster& cluster,
             const costs::Costs& costs, std::size_t steps, const Fold* fold);
  /// How many ranks a place stands for.
  double ranks_at(Id place) const { return sizes.empty() ? 1 : sizes[place]; }
  /// Adds an op to the share of step `at`; nothing after the last step.
  void count(Id op, std::size_t at, Id first_place, std::span<const double> starts,
             std::span<const double> ends);

 private:
  /// Of places that stand for `ranks` ranks each.
  void add(Id op, std::size_t at, Id first_place, std::span<const double> starts,
           std::span<const double> ends, double ranks);
};

}  // namespace rehearse::execution
