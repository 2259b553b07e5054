#include "cli/training/launch_ranks.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/data_dir.h"

namespace rehearse::cli {

runtime::Launched start_ranks(const std::vector<std::string>& arguments,
                              const runtime::LaunchOptions& options) {
  // Options of the launcher, each with a value.
  constexpr std::array<std::string_view, 3> ours{"--nproc", "--nnodes", "--rendezvous"};
  std::vector<std::string> of_rank{own_path()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const auto begins = [&](std::string_view option) {
      return word.starts_with(option) && word.substr(option.size()).starts_with('=');
    };
    if (std::ranges::find(ours, word) != ours.end())
      ++i;
    else if (std::ranges::none_of(ours, begins))
      of_rank.push_back(word);
  }
  return runtime::launch(of_rank, options);
}

}  // namespace rehearse::cli
