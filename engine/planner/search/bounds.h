// Lower bounds of a plan's step time and memory, computed without compiling the plan. A search uses
// them to skip plans that cannot win or fit. The dry run and the linker never find less
// (tests/engine/planner/planner_test.cpp compares them over whole searches).
//
// The time bound is the larger of two:
//
// - Compute: stage s does the forward and backward of M micro-batches, with the tensor-parallel
//   collectives between its segments. The stages before it do the first forward before that, and
//   the last backward after that, and the hops between them take their time. Example for s = 2 and
//   M micro-batches:
//
//       stage 0   F                           B
//       stage 1     F                       B         F + F + M x (work of stage 2) + B + B
//       stage 2       [ M x its own work ]            + hops
//
//   With virtual stages the same holds for the chunks of a stage from chunk c on, after and before
//   all chunks below c. It also holds for the hops from one stage to the next, because a channel
//   runs one transfer at a time.
//   Where backwards are halved, steps overlap: only the M micro-batches of a stage count.
//
// - Network: a channel runs one collective at a time. So a step takes at least as long as the
//   collectives of a stage with all its gradients (ZeRO-3: weights) in one piece. Gradients that
//   are summed once a step are ready when the last micro-batch has added to them: before that, the
//   stage does all its work but that of the last micro-batch (on its first chunk), and its next
//   step begins with weights that are updated and, with ZeRO 1 and 2, gathered.
//
//       compute   [ M - 1 micro-batches ][ the last one ]                       (M - 1) x work
//       network                          [ gradients in one piece ][ weights ]  + max(work,
//       network)
//
//   The same holds for the updates of an optimizer on the host, whose lane does one at a time, and
//   for copies of activations to the host.
//
#pragma once
#include <list>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/costs/device/local_prices.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/profile.h"
#include "engine/plan/plan.h"
#include "engine/planner/search/evaluator.h"

namespace rehearse::planner {

class Bounds {
 public:
  /// `slow`: by link, `pace`: by rank, how many times as long it takes (see costs::Costs; empty:
  /// 1). `model`, `cluster` and `profile` must outlive this object.
  Bounds(const model::ModelSpec& model, const cluster::Cluster& cluster,
         const costs::Profile* profile, std::span<const double> slow = {},
         std::span<const double> pace = {});

  /// Lower bound of seconds per step. All plans here must be prepared (methods::prepare).
  double seconds(const plan::Plan& plan);
  /// A faster and weaker lower bound: local work only, no collectives.
  double local_seconds(const plan::Plan& plan);
  /// Lower bound of the memory of the fullest device.
  MemoryNeed memory(const plan::Plan& plan);

 private:
  /// A kind of device, and the pace of a rank on it.
  using PacedKind = std::pair<Id, double>;
  /// One of several equal replicas: same kinds of devices, same pace, same number of samples.
  /// `kinds` and `tensor_groups` (into CollectivePrices) are by stage.
  struct Replica {
    int samples = 0;
    std::vector<int> members = {};  // their places in the data-parallel group
    std::vector<std::vector<PacedKind>> kinds = {};
    std::vector<Id> tensor_groups = {};
  };
  /// Seconds of a micro-batch's activation from a stage to the next one (of the last: to stage 0),
  /// and of its gradient back.
  struct Hop {
    double forward = 0, backward = 0;
  };
  /// Groups of one mesh, which `order` and `devices` identify among those of one shape.
  struct MeshGroups {
    std::string order = {};
    std::vector<Id> devices = {};
    std::vector<Replica> replicas = {};
    std::vector<Id> data_groups = {};   // by stage: all of its data-parallel groups
    std::vector<Id> shard_groups = {};  // the same, divided into groups of plan::Exchange::group()
    // Seconds that the fastest host takes for a byte: to update it, and to copy it.
    double host_rate = 0, copy_rate = 0;
    /// By first member of a replica and bytes; entries are by stage.
    std::map<std::pair<int, std::int64_t>, std::vector<Hop>> hops = {};
  };
  struct Work {
    double seconds = 0;  // all passes over one micro-batch
    int segments = 0;
  };
  /// Computed once for each mesh.
  MeshGroups& mesh_of(const plan::Plan& plan);
  /// Parameter elements per rank of a stage, and of its first chunk.
  struct Elements {
    std::int64_t all = 0, first = 0;
  };
  /// By stage. Keeps the last answer.
  const std::vector<Elements>& elements(const plan::Plan& plan);
  double compute_seconds(const plan::Plan& plan, const Replica& replica, bool network);
  /// By stage: of the member whose hops take longest. `replica`: of the plan's mesh.
  const std::vector<Hop>& hops(const plan::Plan& plan, const Replica& replica);
  /// Of the stage's data-parallel collectives with so many elements a rank.
  double network_seconds(const plan::Plan& plan, int stage, std::int64_t elements);
  /// Of a rank's updates in its host's memory. `elements`: of the stage, before ZeRO divides them.
  double host_seconds(const plan::Plan& plan, std::int64_t elements);
  /// Of a rank's copies of activations to its host.
  double copy_seconds(const plan::Plan& plan, const Replica& replica, int stage);
  Work chunk_work(const plan::Plan& plan, const Replica& replica, int stage, std::size_t chunk,
                  bool recompute, bool network);
  /// Running sums over segments; entry s is the sum of the segments before s. Seconds of all
  /// passes, and bytes of saved activations.
  const std::vector<double>& passes(Id kind, int samples, const plan::Plan& plan, bool recompute);
  const std::vector<double>& saved(int samples, const plan::Plan& plan);
  /// Seconds of the collective with its fastest algorithm.
  double fastest(Id group, program::Move move, std::int64_t elements, program::DType wire);

  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  costs::LocalPrices local_;
  std::vector<double> pace_;
  bool network_known_;    // prices_ are lower bounds: the profile has no measured collectives
  bool transfers_known_;  // the same of hops: the profile has no measured transfers
  std::vector<double> slow_;
  costs::CollectivePrices prices_;
  /// By pp, tp, samples, group and shares.
  std::map<std::vector<int>, std::list<MeshGroups>> meshes_ = {};
  std::vector<std::vector<Id>> stages_ = {};  // key of elements_, with tp_ and pp_
  int tp_ = 0, pp_ = 0;
  std::vector<Elements> elements_ = {};
  std::map<std::tuple<Id, int, int, bool, bool>, std::vector<double>> passes_ = {};
  std::map<std::tuple<int, int, bool, bool>, std::vector<double>> saved_ = {};
};

}  // namespace rehearse::planner
