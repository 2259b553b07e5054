// Small training runs for tests: a job on gpt-tiny, its run in real processes, the weights at the
// end, and the plain single-process training with which tests compare it.
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

/// A job of 20 steps over the shards in folder `data`, which saves into `out`. Ranks that train
/// apart do so for at most 4 steps.
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
/// Runs a training that should fail and returns the ranks' messages. Each rank calls `before`
/// first.
std::vector<Outcome> fail_in_processes(const job::Job& job, const TrainOptions& options,
                                       const std::function<void(int rank)>& before = {});

/// All weights of a checkpoint by tensor name, in fp32, padding rows included; of weights that each
/// rank has for itself, the mean. master: the fp32 copies of 16-bit weights.
reference::Weights weights_of(const std::string& checkpoint, const model::ModelSpec& model,
                              tensors::StorageKind kind = tensors::StorageKind::param);

/// The weights of the single-process reference and their optimizer, written with tensor operations.
class ReferenceOptimizer {
 public:
  explicit ReferenceOptimizer(const job::Job& job);
  reference::Weights copy() const;
  /// Replaces the weights; the optimizer's state stays.
  void set(const reference::Weights& weights);
  /// One update with the learning rate of step `step`. Adam's bias correction counts the updates
  /// since step 0 or since `restart`.
  void update(const reference::Weights& gradients, std::int64_t step);
  /// Begins anew before step `step`: no moments, and a bias correction that counts from there.
  void restart(std::int64_t step);

 private:
  const job::Job& job_;
  reference::Weights weights_ = {}, first_ = {}, second_ = {};
  std::map<std::string, bool> decays_ = {};
  std::int64_t began_ = 0;  // the step before which it began
};
/// The data of a job, opened as its ranks open them.
Data data_of(const job::Job& job);

/// Result of training a job in a single process with autograd.
struct ReferenceRun {
  std::vector<double> losses = {};
  double validation_loss = 0;
  reference::Weights weights = {};
};
/// How the reference turns gradients into updates, to emulate methods that are not plain
/// synchronous training.
struct ReferenceRules {
  /// By stage: a step computes its gradient with weights that are this many steps older than the
  /// newest. Empty: the newest.
  std::vector<int> staleness = {};
  /// Combines the gradients of the workers into the one that is applied; null: their sum.
  std::function<reference::Weights(int step, const std::vector<reference::Weights>& by_worker)>
      combine = {};
  int workers = 1;
  /// How many samples of the first worker are left out, to see that a test notices.
  int dropped_samples = 0;
};
ReferenceRun train_reference(const job::Job& job, const ReferenceRules& rules = {});
/// The same for jobs of `small_job` that differ from it at most in steps, learning rate, eps and
/// clipping. Without `combine`, it is computed once for all jobs of a process that train alike.
ReferenceRun reference_of(const job::Job& job, const ReferenceRules& rules);

double relative_difference(const at::Tensor& a, const at::Tensor& b);
/// Largest ||a - b|| / ||b|| over all tensors, and its name.
std::pair<double, std::string> worst_difference(const reference::Weights& a,
                                                const reference::Weights& b);
double global_norm(const reference::Weights& weights);

}  // namespace rehearse::runtime
