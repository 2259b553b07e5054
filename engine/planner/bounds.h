// What a candidate takes at least, in time and in memory, told from its numbers alone: a search
// compiles only what these leave open. Both are true bounds of what the dry run and the linker find
// (tests/engine/planner/planner_test.cpp compares them over whole searches).
//
// Time, the larger of two. Compute: stage s of a flushed pipeline works through M micro-batches in
// order, with the sums over tensor ranks between its segments, after the first has come down stages
// 0 to s - 1 and before the last has gone back up them. Network: a channel carries one collective
// at a time, so a step is no shorter than what its gradients or gathered weights take in one piece.
#pragma once
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/costs/collective_prices.h"
#include "engine/costs/local_prices.h"
#include "engine/costs/profile.h"
#include "engine/plan/plan.h"
#include "engine/planner/evaluator.h"

namespace rehearse::planner {

class Bounds {
 public:
  /// `slow` by link and `pace` by rank as in Costs; all must outlive it.
  Bounds(const model::ModelSpec& model, const cluster::Cluster& cluster,
         const costs::Profile* profile, std::span<const double> slow = {},
         std::span<const double> pace = {});

  /// Plans are prepared.
  double seconds(const plan::Plan& plan);
  /// A lower and quicker one: local work alone.
  double local_seconds(const plan::Plan& plan);
  MemoryNeed memory(const plan::Plan& plan);

 private:
  /// A kind of device, and how many times as long a rank on it takes.
  using Player = std::pair<Id, double>;
  /// Replicas whose devices are of the same kinds, as slow as each other, and who take as many
  /// samples are alike: one of them. By stage: kinds of its devices, and one tensor group.
  struct Replica {
    int samples = 0;
    std::vector<std::vector<Player>> kinds = {};
    std::vector<Id> tensor_groups = {};
  };
  struct MeshGroups {
    std::vector<int> shape = {};  // pp, tp, samples, and shares: what makes it this one, with
    std::string order = {};
    std::vector<Id> devices = {};
    std::vector<Replica> replicas = {};
    std::vector<Id> data_groups = {};  // by stage: all of its data-parallel groups
  };
  struct Work {
    double seconds = 0;  // of all its passes over one micro-batch
    int segments = 0;
  };
  /// Candidates of one mesh follow each other: the last is kept.
  const MeshGroups& mesh_of(const plan::Plan& plan);
  /// Elements of the parameters of each stage; the last answer is kept.
  const std::vector<std::int64_t>& elements(const plan::Plan& plan);
  double compute_seconds(const plan::Plan& plan, const Replica& replica, bool network);
  double network_seconds(const plan::Plan& plan, int stage);
  Work chunk_work(const plan::Plan& plan, const Replica& replica, int stage, std::size_t chunk,
                  bool recompute, bool network);
  /// Running sums over segments.
  const std::vector<double>& passes(Id kind, int samples, const plan::Plan& plan, bool recompute);
  const std::vector<double>& saved(int samples, const plan::Plan& plan);
  double fastest(Id group, program::Move move, std::int64_t elements, program::DType wire);

  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  costs::LocalPrices local_;
  std::vector<double> pace_;
  bool network_known_;  // no measured collective is quicker than what prices say
  costs::CollectivePrices prices_;
  MeshGroups mesh_ = {};
  std::vector<std::vector<Id>> stages_ = {};  // of what elements_ is
  int tp_ = 0, pp_ = 0;
  std::vector<std::int64_t> elements_ = {};
  std::map<std::tuple<Id, int, int, bool>, std::vector<double>> passes_ = {};
  std::map<std::tuple<int, int, bool>, std::vector<double>> saved_ = {};
};

}  // namespace rehearse::planner
