// Guesses the simulated step time of a candidate that was not simulated yet, from the candidates of
// the same class that were. The dry run ignores that transfers of different ops share links, so it
// is a lower bound of the simulation, except for rounding. The ratio of the two differs much
// between classes (mesh, order of axes, schedule, ZeRO level, sparse or dense), but little within
// one:
//
//   guess = bound x min(dry run / bound) x min(simulation / dry run)     minima over the class
//
// Internal to engine/planner.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "engine/plan/plan.h"

namespace rehearse::planner {

class ContentionGuess {
 public:
  /// By which candidates the ratio simulation / dry run of a candidate is guessed: by those of its
  /// class, or only by those of them that also have the same micro-batches and buckets, and both or
  /// neither unequal shares and devices out of order.
  enum class By : std::uint8_t { its_class, its_kind };

  /// Seconds of the simulation if the candidate's ratios are the smallest that its class had so far
  /// (1 if nothing is known). `bound`: its lower bound; `seconds`: its dry run.
  double of_bound(const plan::Plan& plan, double bound, By by) const;
  double of_dry_run(const plan::Plan& plan, double seconds, By by) const;
  void learn_dry_run(const plan::Plan& plan, double bound, double seconds);
  void learn_simulation(const plan::Plan& plan, double dry_run, double seconds);

 private:
  /// Smallest ratios seen; a class of which none was seen has no entry.
  using Ratios = std::map<std::string, double>;
  Ratios dry_run_ = {}, simulation_ = {};
};

}  // namespace rehearse::planner
