// See study_migration.h.
#include "cli/study_migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "engine/costs.h"
#include "engine/dry_run.h"
#include "engine/errors.h"
#include "engine/migration.h"
#include "engine/profile.h"
#include "engine/units.h"
#ifdef REHEARSE_HAS_SIM
#include <cstring>

#include "sim/executor.h"
#include "sim/processes.h"
#endif

namespace rehearse {
namespace {

double seconds_of(const LinkedProgram& linked, const Job& job, const Costs& costs, Level level,
                  const Profile* profile, const std::vector<double>& slow) {
  const Disturber disturber(job.disturb, job.plan.world_size());
  Tee nobody({});
  if (level == Level::analytic) return dry_run(linked, costs, disturber, 1, nobody).seconds;
#ifdef REHEARSE_HAS_SIM
  const SimOptions options{.fidelity = level == Level::chunk ? Fidelity::chunk : Fidelity::fluid,
                           .profile = profile,
                           .slow = slow};
  const auto simulated = [&](int) {
    const double seconds =
        simulate(linked, costs, job.cluster, disturber, 1, nobody, options).seconds;
    return std::string(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  };
  double seconds = 0;
  std::memcpy(&seconds, in_processes(1, simulated).front().data(), sizeof seconds);
  return seconds;
#else
  (void)profile, (void)slow;
  throw InputError(
      fmt::format("--fidelity {}: this build has no SimGrid; analytic needs none", name_of(level)));
#endif
}

}  // namespace

MigrationStudy study_migration(const Job& job, const Plan& first, Level level) {
  Job before = job;
  before.plan = first;
  const LinkedProgram from = link(compile(before)), to = link(compile(job));
  const std::vector<Id>& devices = first.rank_to_device;
  const Migration migration = migrate(from, to, job.model,
                                      {.distance = distance_on(job.cluster, devices),
                                       .played = {},
                                       .plays = players(devices, job.plan.rank_to_device)});
  const LinkedProgram linked = link(migration.program);
  std::optional<Profile> profile;
  if (!job.profile.empty()) profile = load_profile(job.profile);
  const std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  const Costs costs(linked, job.model, job.cluster, devices, job.plan.optimizer,
                    profile ? &*profile : nullptr, slow);

  MigrationStudy out{
      .from = first.method,
      .mesh = from.program.mesh,
      .after_step = job.adaptive.warmup_steps,
      .seconds = seconds_of(linked, job, costs, level, profile ? &*profile : nullptr, slow),
      .bytes = static_cast<double>(migration.sent_bytes)};
  for (Id role = 0; role < linked.program.roles.size(); ++role) {
    double sent = 0;
    for (Id op = 0; op < linked.program.roles[role].ops.size(); ++op)
      sent += costs.bytes_sent(role, op)[0];
    out.bytes_most = std::max(out.bytes_most, sent);
  }
  out.memory = device_needs(linked, job.cluster, devices);
  for (const DeviceNeed& need : out.memory)
    if (!need.fits())
      throw InputError(
          fmt::format("the states of both plans do not fit at once: the migration from {} to {} "
                      "needs {} on {}, "
                      "which has {}; warm up under a plan that shards more (adaptive.warmup_plan)",
                      first.method, job.plan.method, to_text(Bytes(static_cast<double>(need.need))),
                      need.kind, to_text(Bytes(static_cast<double>(need.capacity)))));
  return out;
}

nlohmann::ordered_json to_json(const MigrationStudy& s) {
  nlohmann::ordered_json mesh = nlohmann::ordered_json::object(), memory = mesh;
  for (const Axis& axis : s.mesh) mesh[axis.name] = axis.size;
  for (const DeviceNeed& need : s.memory) memory[need.kind] = need.need;
  return {{"from_method", s.from},      {"from_mesh", mesh},
          {"after_step", s.after_step}, {"seconds", s.seconds},
          {"bytes_total", s.bytes},     {"bytes_sent_per_rank_max", s.bytes_most},
          {"peak_memory_bytes", memory}};
}

std::string describe(const MigrationStudy& s) {
  const auto bytes = [](double n) { return to_text(Bytes(n)); };
  return fmt::format("after step {} of {}: {}, {} sent in all, {} by one rank", s.after_step,
                     s.from, to_text(Seconds(s.seconds)), bytes(s.bytes), bytes(s.bytes_most));
}

}  // namespace rehearse
