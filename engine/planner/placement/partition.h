// Cuts the model into contiguous chunks for unlike devices, so that the slowest chunk is as fast as
// possible and each chunk fits into its devices' memory. Exact, by dynamic programming over (chunk,
// end):
//
//   best(c, end) = min over begin of max(best(c - 1, begin), seconds(c, begin, end))
//
//     segment seconds   4 1 1 | 4 2     2 chunks on equal devices: 6 and 6 s
//                       4 1 1 4 | 2     if the first device is twice as fast: 5 and 2 s
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/device/local_prices.h"
#include "engine/costs/profile.h"
#include "engine/methods/pass_order.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// Seconds of a chunk with the segments [begin, end); infinite when they do not fit into memory.
/// Must not fall when the chunk grows.
using ChunkSeconds = std::function<double(std::size_t chunk, std::size_t begin, std::size_t end)>;

/// The end of each chunk in the partition whose slowest chunk is fastest; among those, the one with
/// the smallest sum. None when nothing fits.
std::optional<std::vector<std::size_t>> partition(std::size_t segments, std::size_t chunks,
                                                  const ChunkSeconds& seconds);

/// Seconds and bytes of runs of segments, as sums over their segments. The arguments must outlive
/// it.
class SegmentTable {
 public:
  SegmentTable(const model::ModelSpec& model, const plan::Plan& plan,
               const cluster::Cluster& cluster, const costs::Profile* profile);
  /// Seconds of forward, backward and recomputation of one micro-batch on a device of this kind;
  /// measured times if the profile has them.
  double seconds(Id kind, int samples, std::size_t begin, std::size_t end) const;
  /// Bytes of a rank of `stage` with these segments: states, gradients, and the activations of as
  /// many micro-batches as the schedule keeps in flight there.
  double bytes(int stage, int samples, std::size_t begin, std::size_t end) const;

 private:
  /// Bytes of one micro-batch. `kept` are running sums (entry s: the segments before s); `saved`
  /// and `workspace` are by segment.
  struct Activations {
    std::vector<double> kept = {}, saved = {}, workspace = {};
  };
  const Activations& activations(int samples) const;
  model::TensorSplit split() const {
    return model::TensorSplit(plan_.mesh.tp, plan_.mesh.sequence_parallel).in_fp8(plan_.fp8);
  }
  std::vector<double> sums_of(Id kind, int samples) const;

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const cluster::Cluster& cluster_;
  costs::LocalPrices prices_;
  methods::PassOrder order_ = {};
  double bytes_per_parameter_ = 0;
  std::vector<double> elements_ = {0};  // running sums of parameters; a tied table counts once
  double tied_ = 0;                     // parameters of a head whose tied table is in another chunk
  mutable std::map<std::pair<Id, int>, std::vector<double>> seconds_ = {};
  mutable std::map<int, Activations> activations_ = {};
};

}  // namespace rehearse::planner
