// Contiguous stages for unlike devices: which segments each model chunk gets, so that the slowest
// one is as fast as can be and every one fits into its devices' memory. Dynamic programming over
// (chunk, end), exact: no other partition has a smaller largest chunk.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/local_prices.h"
#include "engine/costs/profile.h"
#include "engine/methods/pass_order.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// Seconds of a chunk that holds the segments [begin, end); infinite when they do not fit. Never
/// falls when a chunk grows.
using ChunkSeconds = std::function<double(std::size_t chunk, std::size_t begin, std::size_t end)>;

/// Where each chunk ends, with the smallest largest chunk, and of those the smallest sum. Empty
/// when nothing fits.
std::optional<std::vector<std::size_t>> partition(std::size_t segments, std::size_t chunks,
                                                  const ChunkSeconds& seconds);

/// Seconds and bytes of runs of segments, as sums of what each segment takes.
class SegmentTable {
 public:
  SegmentTable(const model::ModelSpec& model, const plan::Plan& plan,
               const cluster::Cluster& cluster, const costs::Profile* profile);
  /// Forward, backward and recomputation of one micro-batch on a device of this kind: measured
  /// where the profile has it.
  double seconds(Id kind, int samples, std::size_t begin, std::size_t end) const;
  /// Memory of a rank of `stage` that holds these segments: states, gradients, and the activations
  /// of as many micro-batches as the schedule keeps alive there.
  double bytes(int stage, int samples, std::size_t begin, std::size_t end) const;

 private:
  /// Sums over the segments before each; index n: all.
  struct Activations {
    std::vector<double> kept = {}, saved = {}, workspace = {};
  };
  const Activations& activations(int samples) const;
  std::vector<double> sums_of(Id kind, int samples) const;

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const cluster::Cluster& cluster_;
  costs::LocalPrices prices_;
  methods::PassOrder order_ = {};
  double bytes_per_parameter_ = 0;
  std::vector<double> elements_ = {0};  // parameters before each segment; a tied table once
  double tied_ = 0;                     // ... and what the head adds where it is without it
  mutable std::map<std::pair<Id, int>, std::vector<double>> seconds_ = {};
  mutable std::map<int, Activations> activations_ = {};
};

}  // namespace rehearse::planner
