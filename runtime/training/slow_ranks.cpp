#include "runtime/training/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/numbers/median.h"

namespace rehearse::runtime {

std::string slowness(double factor, double threshold) {
  return fmt::format(
      "it is slow: it computes {:.1f} times as long as it should (recovery.slow_factor = {:g})",
      factor, threshold);
}

SlowRanks::SlowRanks(std::vector<Id> role_of, double factor)
    : role_of_(std::move(role_of)), factor_(factor), ranks_(role_of_.size()) {}

std::optional<SlowRank> SlowRanks::add(Id rank, double seconds) {
  Told& told = ranks_[rank];
  if (++told.steps < window) return std::nullopt;
  if (told.steps > window) return std::nullopt;  // ahead of others: counted with the next window
  told.seconds = seconds - told.at_window_start;
  if (++complete_ < ranks_.size()) return std::nullopt;
  complete_ = 0;
  std::optional<SlowRank> found;
  if (warm_) found = judge();
  warm_ = true;
  for (Told& one : ranks_) {
    one.at_window_start += one.seconds;
    one.steps -= window;
  }
  return found;
}

double SlowRanks::times_slower(Id rank) const {
  std::vector<double> alike, grown;
  for (Id other = 0; other < ranks_.size(); ++other) {
    if (role_of_[other] == role_of_[rank]) alike.push_back(ranks_[other].seconds);
    grown.push_back(ranks_[other].seconds / ranks_[other].first);
  }
  if (alike.size() >= 3) {
    const double middle = lower_median(alike);
    for (double& value : alike) value = std::abs(value - middle);
    const double deviation = 1.4826 * lower_median(alike);
    const double mine = ranks_[rank].seconds;
    return mine > middle + 5 * deviation ? mine / middle : 1;
  }
  return grown[rank] / lower_median(grown);
}

std::optional<SlowRank> SlowRanks::judge() {
  for (Told& one : ranks_)
    if (one.first == 0) one.first = std::max(one.seconds, 1e-9);
  std::optional<SlowRank> worst;
  for (Id rank = 0; rank < ranks_.size(); ++rank) {
    const double factor = times_slower(rank);
    const bool again = std::exchange(ranks_[rank].suspect, factor > factor_);
    if (factor > factor_ && again && (!worst || factor > worst->factor))
      worst = {.rank = rank, .factor = factor};
  }
  if (worst)
    for (const Told& one : ranks_) worst->seconds.push_back(one.seconds);
  return worst;
}

}  // namespace rehearse::runtime
