// Slurm through sbatch, squeue and scancel: a job array. Slurm queues the tasks of a lost node
// again where the site allows it.
#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "cli/batch/batch_system.h"
#include "cli/batch/system_command.h"
#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

Finished call(const std::vector<std::string>& command) {
  return call_system("slurm", command,
                     "Run this where Slurm's commands are, such as on a login node");
}

/// A path in which Slurm finds no placeholder.
std::string plain(const std::string& path) {
  std::string out;
  for (const char c : path) out += c == '%' ? std::string("%%") : std::string(1, c);
  return out;
}

class Slurm : public BatchSystem {
 public:
  void check() const override;
  std::string submit(const BatchJob& job) const override;
  TaskCounts tasks(const std::string& job) const override;
  void cancel(const std::string& job) const override;
};

void Slurm::check() const {
  const Finished done = call({"sinfo", "--noheader"});
  if (done.status != 0)
    throw InputError(fmt::format("--on slurm: Slurm does not answer ({})", last_line(done.output)));
}

std::string Slurm::submit(const BatchJob& job) const {
  std::vector<std::string> command{"sbatch",
                                   "--parsable",
                                   "--job-name=rehearse-sweep",
                                   "--array=" + ranges_of(job.tasks),
                                   fmt::format("--cpus-per-task={}", job.cores),
                                   "--chdir=" + std::filesystem::current_path().string(),
                                   fmt::format("--output={}/%a.log", plain(job.logs)),
                                   "--open-mode=append",
                                   "--requeue"};
  command.insert(command.end(), job.more.begin(), job.more.end());
  command.push_back("--wrap=task=$SLURM_ARRAY_TASK_ID; " + job.command);
  const Finished done = call(command);
  std::string number = last_line(done.output);
  number = number.substr(0, number.find(';'));  // "12;cluster"
  if (done.status != 0 || number.empty() ||
      number.find_first_not_of("0123456789") != std::string::npos)
    throw InputError(fmt::format("--on slurm: sbatch refused: {}",
                                 done.output.substr(0, done.output.find_last_not_of(" \n") + 1)));
  return number;
}

TaskCounts Slurm::tasks(const std::string& job) const {
  const Finished done = call({"squeue", "--noheader", "--array", "--jobs=" + job, "--format=%T"});
  TaskCounts out;
  if (done.status != 0) {
    // Slurm forgets a job some minutes after its end.
    if (done.output.find("Invalid job id") != std::string::npos) return out;
    throw BackendError(fmt::format("squeue: {}", last_line(done.output)));
  }
  static const std::set<std::string> ended{"BOOT_FAIL", "CANCELLED", "COMPLETED",     "DEADLINE",
                                           "FAILED",    "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
                                           "REVOKED",   "TIMEOUT"};
  std::istringstream lines(done.output);
  for (std::string state; std::getline(lines, state);) {
    state = last_line(state);
    if (state.empty() || ended.contains(state)) continue;
    ++(state == "PENDING" || state.starts_with("REQUEUE") ? out.waiting : out.running);
  }
  return out;
}

void Slurm::cancel(const std::string& job) const {
  const Finished done = call({"scancel", job});
  if (done.status != 0)
    throw BackendError(fmt::format("scancel {}: {}", job, last_line(done.output)));
}

}  // namespace

std::unique_ptr<BatchSystem> slurm() { return std::make_unique<Slurm>(); }

}  // namespace rehearse::cli
