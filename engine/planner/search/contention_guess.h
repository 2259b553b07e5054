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
  /// Seconds of the simulation if the candidate's ratios are the smallest that its class had so far
  /// (1 if nothing is known). `bound`: its lower bound; `seconds`: its dry run.
  double of_bound(const plan::Plan& plan, double bound) const;
  double of_dry_run(const plan::Plan& plan, double seconds) const;
  void learn_dry_run(const plan::Plan& plan, double bound, double seconds);
  void learn_simulation(const plan::Plan& plan, double dry_run, double seconds);

 private:
  struct Ratios {
    /// Smallest dry run / bound and simulation / dry run of the class; 0: none seen.
    double dry_run = 0, simulation = 0;
    void learn(double& ratio, double seen) { ratio = ratio == 0 ? seen : std::min(ratio, seen); }
  };
  static std::string class_of(const plan::Plan& plan);
  Ratios known(const plan::Plan& plan) const;
  std::map<std::string, Ratios> classes_ = {};
};

}  // namespace rehearse::planner
