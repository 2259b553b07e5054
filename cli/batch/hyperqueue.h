// HyperQueue (It4innovations/hyperqueue) through its program hq: a task array, whose tasks a server
// deals to workers. It runs the tasks of a lost worker again by itself.
#pragma once
#include "cli/batch/batch_system.h"

namespace rehearse::cli {

class HyperQueue : public BatchSystem {
 public:
  void check() const override;
  std::string submit(const BatchJob& job) const override;
  TaskCounts tasks(const std::string& job) const override;
  void cancel(const std::string& job) const override;
};

}  // namespace rehearse::cli
