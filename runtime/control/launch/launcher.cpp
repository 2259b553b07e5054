#include "runtime/control/launch/launcher.h"

#include <fmt/format.h>

#include <csignal>

#include "engine/base/errors.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/launch/local_ranks.h"
#include "runtime/control/membership/elastic.h"

namespace rehearse::runtime {
namespace {

/// A run with one launcher.
Launched launch_here(const RankWork& work, const LaunchOptions& options) {
  LocalRanks ranks(work, options);
  try {
    ranks.start_all();
    while (true) {
      while (!ranks.settled()) ranks.turn();
      const Launched ended = ranks.outcome();
      const bool goes_on = options.recover && !ended.interrupted && ended.status == 1;
      const auto next = goes_on ? options.recover(ended) : std::nullopt;
      if (!next) {
        ranks.end_all();
        return ended;
      }
      ranks.go_on(*next);
    }
  } catch (...) {
    ranks.kill_all(SIGKILL);
    throw;
  }
}

}  // namespace

Launched launch(const RankWork& work, const LaunchOptions& options) {
  if (options.nproc < 1)
    throw InputError(fmt::format("--nproc {}: at least one process is needed", options.nproc));
  return options.elastic ? launch_elastic(work, options) : launch_here(work, options);
}

bool launched() { return process_variable("REHEARSE_LISTENER").has_value(); }

}  // namespace rehearse::runtime
