#include "cli/batch/batch_system.h"

#include "cli/batch/hyperqueue.h"
#include "cli/batch/slurm.h"

namespace rehearse::cli {

const std::vector<std::string>& batch_systems() {
  static const std::vector<std::string> names{"hq", "slurm"};
  return names;
}

std::unique_ptr<BatchSystem> batch_system(const std::string& name) {
  if (name == "hq") return std::make_unique<HyperQueue>();
  return std::make_unique<Slurm>();
}

}  // namespace rehearse::cli
