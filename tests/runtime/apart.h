// Workers that train apart, emulated in one process from the definitions of local SGD, DiLoCo,
// FedAvg and D-PSGD, with autograd and tensor operations.
#pragma once
#include <functional>
#include <vector>

#include "engine/job/job.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {

/// Whether the job's ranks have weights of their own.
bool trains_apart(const job::Job& job);
/// The mixing matrix of D-PSGD on a graph: W[i][j] is the weight of worker j's weights at worker i.
/// `distances`: of the neighbours before a worker, for a random graph.
std::vector<std::vector<double>> mixing_matrix(plan::Graph graph, int workers,
                                               const std::vector<int>& distances);

struct ApartRun {
  /// Losses are means over the samples, each at its worker's weights; weights are the workers'
  /// mean.
  ReferenceRun mean = {};
  std::vector<reference::Weights> weights = {};  // [worker]
  /// [step]: root mean square distance of the workers' weights from their mean, after it.
  std::vector<double> distances = {};
};
/// Trains `job`, whose method is "local-sgd", "diloco", "fedavg" or "d-psgd". `late`: by step, the
/// workers that a round with a deadline leaves out: in its last step all of them, before that those
/// that have given up; empty: none ever is.
ApartRun train_apart(const job::Job& job, const std::vector<std::vector<Id>>& late = {});
/// The same, as the metrics of a run in `folder` name them.
std::vector<std::vector<Id>> late_of(const std::string& folder);

/// [worker]: its own weights in a checkpoint.
std::vector<reference::Weights> own_weights_of(const std::string& checkpoint, const job::Job& job);
/// Root mean square distance of weights from their mean.
double consensus_distance(const std::vector<reference::Weights>& weights);

}  // namespace rehearse::runtime
