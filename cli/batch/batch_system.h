// A batch system runs the tasks of one job on other machines: HyperQueue or Slurm. It is asked
// through its own commands, as its users do, so that it may be of any version and any site.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace rehearse::cli {

struct BatchJob {
  std::vector<int> tasks = {};  // their numbers, from 1 on, in order
  /// For sh. The task's number stands for each `$task` in it.
  std::string command = {};
  std::string logs = {};  // a folder; task 3 appends what it says to 3.log
  int cores = 1;          // of a task
  std::vector<std::string> more =
      {};  // arguments of the user, for the system's command of submission
};

struct TaskCounts {
  int waiting = 0, running = 0;
};

class BatchSystem {
 public:
  BatchSystem() = default;
  virtual ~BatchSystem() = default;
  BatchSystem(const BatchSystem&) = delete;
  BatchSystem& operator=(const BatchSystem&) = delete;

  /// Throws InputError that says what to do when the system is not there.
  virtual void check() const = 0;
  /// Returns the job's number. Throws InputError with the system's words when it refuses.
  virtual std::string submit(const BatchJob& job) const = 0;
  /// The tasks that have not ended. Throws BackendError when the system does not answer.
  virtual TaskCounts tasks(const std::string& job) const = 0;
  /// Ends all tasks. Throws BackendError.
  virtual void cancel(const std::string& job) const = 0;
};

/// The names after --on.
const std::vector<std::string>& batch_systems();
std::unique_ptr<BatchSystem> batch_system(const std::string& name);
/// Each of them.
std::unique_ptr<BatchSystem> hyperqueue();
std::unique_ptr<BatchSystem> slurm();

/// The words of a text as sh reads them, with quotes and without variables. Throws InputError that
/// names `flag` for a quote without an end.
std::vector<std::string> words_of(const std::string& text, const std::string& flag);

}  // namespace rehearse::cli
