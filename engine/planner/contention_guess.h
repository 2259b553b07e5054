// What a simulation will say of candidates that were not simulated yet, from those of their class
// that were. The dry run leaves out that transfers of different ops share links, so it is, but for
// rounding, a lower bound of the simulation; how far below differs from class to class (mesh, order
// of axes, schedule, sharding) much more than within one. Private to the planner.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "engine/plan/plan.h"

namespace rehearse::planner {

class ContentionGuess {
 public:
  /// At least so many seconds, if the candidate does no better than the best of its class did.
  /// `bound` is the lower bound that it was queued by.
  double of_bound(const plan::Plan& plan, double bound) const;
  double of_dry_run(const plan::Plan& plan, double seconds) const;
  void learn_dry_run(const plan::Plan& plan, double bound, double seconds);
  void learn_simulation(const plan::Plan& plan, double dry_run, double seconds);

 private:
  struct Ratios {
    double dry_run = 0, simulation = 0;  // to the bound, to the dry run; 0: none seen
    void learn(double& ratio, double seen) { ratio = ratio == 0 ? seen : std::min(ratio, seen); }
  };
  static std::string class_of(const plan::Plan& plan);
  Ratios known(const plan::Plan& plan) const;
  std::map<std::string, Ratios> classes_ = {};
};

}  // namespace rehearse::planner
