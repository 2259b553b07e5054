// Finds ranks that compute much slower than others like them: a device that throttles, a node that
// somebody else uses too. It compares robustly (medians), so one slow rank does not hide itself,
// and it looks at windows of steps, so a single slow step is nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::runtime {

struct SlowRank {
  Id rank = none;
  double factor = 1;                 // how many times as long it computes
  std::vector<double> seconds = {};  // by rank: of computing in the last window
};

/// "it is slow: it computes 5.1 times as long as it should (recovery.slow_factor = 2)".
std::string slowness(double factor, double threshold);

class SlowRanks {
 public:
  static constexpr int window = 20;  // steps

  /// `role_of`: by rank; ranks of a role have the same work. `factor`: from how many times as long
  /// on a rank is slow.
  SlowRanks(std::vector<Id> role_of, double factor);

  /// Seconds that a rank has computed in this plan until the end of its next step. Returns a rank
  /// that was slow in two windows running, once all ranks have told of the second one:
  /// - in a role with three ranks or more, if it exceeded both `factor` times the lower median of
  ///   its role and that median by 5 robust standard deviations (1.4826 x the lower median absolute
  ///   deviation);
  /// - in a smaller role, if it grew by `factor` since its first window more than the lower median
  ///   of all ranks grew.
  std::optional<SlowRank> add(Id rank, double seconds);

 private:
  std::optional<SlowRank> judge();
  double times_slower(Id rank) const;

  std::vector<Id> role_of_;
  double factor_;
  struct Told {
    std::int64_t steps = 0;      // of the present window
    double at_window_start = 0;  // seconds: of all windows before the present one
    double seconds = 0;          // of the present window, once it is complete
    double first = 0;            // of its first whole window
    bool suspect = false;
  };
  std::vector<Told> ranks_;
  std::size_t complete_ = 0;  // ranks whose window is complete
  bool warm_ = false;         // the first window has passed: it has allocations and cold caches
};

}  // namespace rehearse::runtime
