// Small training runs for tests: a job on gpt-tiny, its real processes, the weights they end with,
// and the plain single-process training that they are held to.
#pragma once
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "runtime/data/data.h"
#include "runtime/training/train.h"
#include "tests/models/reference.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {

/// A job over `data` (a folder with shards), 20 steps, saving into `out`.
job::Job small_job(plan::Plan plan, const std::string& data, const std::string& out,
                   const std::string& model = "gpt-tiny");
/// Shards of learnable tokens for the tiny model.
void write_data(const ScratchFolder& folder);

struct TrainedRun {
  std::vector<double> losses = {};
  double validation_loss = 0;
  std::string checkpoint = {};
};
/// Trains in real processes. Fails the test with the ranks' messages when one of them fails.
TrainedRun train_in_processes(const job::Job& job, const TrainOptions& options = {});
/// The messages of the ranks of a run that is to fail; what `before` does, each rank does first.
std::vector<Outcome> fail_in_processes(const job::Job& job, const TrainOptions& options,
                                       const std::function<void(int rank)>& before = {});

/// All weights of a checkpoint by tensor name, in fp32, without padding rows' meaning changed.
reference::Weights weights_of(const std::string& checkpoint, const model::ModelSpec& model);

/// Weights of one process and the optimizer that moves them.
class ReferenceOptimizer {
 public:
  explicit ReferenceOptimizer(const job::Job& job);
  reference::Weights copy() const;
  /// With the learning rate of a step; Adam's moments are as old as that step.
  void update(const reference::Weights& gradients, std::int64_t step);

 private:
  const job::Job& job_;
  reference::Weights weights_ = {}, first_ = {}, second_ = {};
  std::map<std::string, bool> decays_ = {};
};
/// The data of a job as its ranks open it.
Data data_of(const job::Job& job);

/// What single-process autograd gives for the same job.
struct ReferenceRun {
  std::vector<double> losses = {};
  double validation_loss = 0;
  reference::Weights weights = {};
};
/// How gradients become updates in the reference, to emulate methods that are not plain
/// synchronous training. Called once per step with the weights before it.
struct ReferenceRules {
  /// Weights to compute step t's gradient with: this many steps older than the newest.
  int staleness = 0;
  /// Sum of dp gradients, each given alone, into the gradient that is applied.
  std::function<reference::Weights(int step, const std::vector<reference::Weights>& by_worker)>
      combine = {};
  int workers = 1;
  /// Samples of the first worker to leave out: a mutation.
  int dropped_samples = 0;
};
ReferenceRun train_reference(const job::Job& job, const ReferenceRules& rules = {});

double relative_difference(const at::Tensor& a, const at::Tensor& b);
/// Largest ||a - b|| / ||b|| over all tensors, and its name.
std::pair<double, std::string> worst_difference(const reference::Weights& a,
                                                const reference::Weights& b);
double global_norm(const reference::Weights& weights);

}  // namespace rehearse::runtime
