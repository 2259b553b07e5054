// Measures losses on text that is not trained on: the validation shards of train.data, and those of
// the folders that train.evaluate names.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/executor/executor.h"
#include "runtime/training/progress.h"

namespace rehearse::runtime {

/// Losses of one evaluation: mean -log p of a label. Known in every rank.
struct Losses {
  double validation = 0;                                    // NaN: no validation shards
  std::vector<std::pair<std::string, double>> others = {};  // by folder of train.evaluate
};

/// How ranks draw from their own inputs in a job's training. A round lasts from one exchange of
/// weights to the next; one step where gradients are exchanged.
Clients clients_of(const job::Job& job);

/// What losses are measured on.
struct EvaluationData {
  /// Throws InputError for a folder that Data refuses, or one of train.evaluate that has no
  /// validation shards.
  explicit EvaluationData(const job::Job& job);
  Data own;                                               // train.data, which is trained on too
  std::vector<std::pair<std::string, Data>> others = {};  // train.evaluate
};

class Evaluation {
 public:
  Evaluation(const job::Job& job, const EvaluationData& data, Control& control, Progress& progress)
      : job_(job), data_(data), control_(control), progress_(progress) {}

  /// Every rank calls it, between two runs of the executor. Rank 0 writes the losses down.
  Losses run(std::int64_t step, Executor& executor) const;

 private:
  double loss_of(const Data& data, const std::string& what, std::int64_t step,
                 Executor& executor) const;

  const job::Job& job_;
  const EvaluationData& data_;
  Control& control_;
  Progress& progress_;
};

}  // namespace rehearse::runtime
