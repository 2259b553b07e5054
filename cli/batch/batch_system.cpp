#include "cli/batch/batch_system.h"

namespace rehearse::cli {

const std::vector<std::string>& batch_systems() {
  static const std::vector<std::string> names{"hq", "slurm"};
  return names;
}

std::unique_ptr<BatchSystem> batch_system(const std::string& name) {
  return name == "hq" ? hyperqueue() : slurm();
}

}  // namespace rehearse::cli
