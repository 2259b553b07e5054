#include "runtime/training/node_death.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/control/membership/members.h"

namespace rehearse::runtime {
namespace {

Id node_of(const job::Job& job, Id rank) {
  return job.cluster.devices()[job.plan.placement.rank_to_device[rank]].node;
}

}  // namespace

RankPlace place_of(const job::Job& job, Id rank) {
  RankPlace place{.rank = rank,
                  .node = node_of(job, rank),
                  .leads = true,
                  .ranks = static_cast<Id>(job.plan.mesh.world_size())};
  for (Id other = 0; other < rank; ++other)
    if (node_of(job, other) == place.node) place.leads = false;
  return place;
}

void lose_node(const job::Job& job, const NodeStore& store, const Control& control) {
  const auto self = static_cast<Id>(control.environment().rank);
  const std::vector<MemberInfo>& members = Members::of(control);
  for (Id other = 0; other < members.size(); ++other)
    if (other != self && node_of(job, other) == node_of(job, self))
      kill(static_cast<pid_t>(members[other].pid), SIGKILL);
  if (!store.used()) return;
  // A lane of this rank may be writing there: nobody looks at the folder under its new name.
  const std::filesystem::path folder = store.folder_of(self);
  const std::filesystem::path lost = folder.parent_path() / ("lost-" + folder.filename().string());
  std::error_code error;
  std::filesystem::rename(folder, lost, error);
  for (int again = 0; again < 100 && std::filesystem::exists(lost); ++again)
    std::filesystem::remove_all(lost, error);
}

void tell_not_struck(const FaultInjector& faults, const job::Job& job, std::int64_t steps,
                     Control& control) {
  std::string mine;
  for (const std::string& sentence : faults.not_struck(steps))
    mine += fmt::format("warning: {}: {}\n", job.faults.trace, sentence);
  for (const std::string& text : control.gather("events that did not strike", mine))
    if (control.environment().rank == 0) std::fputs(text.c_str(), stderr);
}

}  // namespace rehearse::runtime
