// Slurm through sbatch, squeue and scancel: a job array. Slurm queues the tasks of a lost node
// again where the site allows it.
#pragma once
#include "cli/batch/batch_system.h"

namespace rehearse::cli {

class Slurm : public BatchSystem {
 public:
  void check() const override;
  std::string submit(const BatchJob& job) const override;
  TaskCounts tasks(const std::string& job) const override;
  void cancel(const std::string& job) const override;
};

}  // namespace rehearse::cli
