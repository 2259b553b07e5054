#include "cli/training/launch_ranks.h"

#include "engine/base/data_dir.h"
#include "runtime/control/launcher.h"

namespace rehearse::cli {

int start_ranks(const std::vector<std::string>& arguments, int nproc) {
  std::vector<std::string> of_rank{own_path()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--nproc") {
      ++i;
    } else if (!arguments[i].starts_with("--nproc=")) {
      of_rank.push_back(arguments[i]);
    }
  }
  return runtime::launch(of_rank, {.nproc = nproc});
}

}  // namespace rehearse::cli
