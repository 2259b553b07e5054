// See study_migration.h.
#include "cli/study/study_migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "cli/study/load.h"
#include "engine/execution/chrome_trace.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run.h"
#include "engine/base/errors.h"
#include "engine/migration/migration.h"
#include "engine/costs/profile.h"
#include "engine/base/units.h"
#ifdef REHEARSE_HAS_SIM
#include <cstring>

#include "sim/executor.h"
#include "sim/processes.h"
#endif

namespace rehearse {
namespace {

/// The migration's program, and what it moves.
struct Change {
  LinkedProgram from = {}, linked = {};
  Migration migration = {};
  std::vector<DeviceNeed> memory = {};
};

Change change_of(const Job& job, const Plan& first) {
  Job before = job;
  before.plan = first;
  Change out;
  out.from = link(compile(before));
  const std::vector<Id>& devices = first.rank_to_device;
  out.migration = migrate(out.from, link(compile(job)), job.model,
                          {.distance = distance_on(job.cluster, devices),
                           .played = {},
                           .plays = players(devices, job.plan.rank_to_device)});
  out.linked = link(out.migration.program);
  out.memory = device_needs(out.linked, job.cluster, devices);
  for (const DeviceNeed& need : out.memory)
    if (!need.fits())
      throw InputError(fmt::format(
          "the states of both plans do not fit at once: the migration from {} to {} needs {} on "
          "{}, which has {}; warm up under a plan that shards more (adaptive.warmup_plan), or run "
          "one plan from the first step (method.plan)",
          first.method, job.plan.method, to_text(Bytes(static_cast<double>(need.need))), need.kind,
          capacity_text(need.capacity, need.reserve)));
  return out;
}

double seconds_of(const LinkedProgram& linked, const Job& job, const Costs& costs, Level level,
                  const Profile* profile, const std::vector<double>& slow,
                  const std::string& trace) {
  const Disturber disturber(job.disturb, job.plan.world_size());
  const auto traced = [&](const auto& play) {
    if (trace.empty()) {
      Tee nobody({});
      return play(nobody);
    }
    ChromeTrace file(trace, linked, job.model, {.first_step = 0, .last_step = 0});
    Tee tee({&file});
    const double seconds = play(tee);
    file.close();
    return seconds;
  };
  if (level == Level::analytic)
    return traced(
        [&](TraceSink& sink) { return dry_run(linked, costs, disturber, 1, sink).seconds; });
#ifdef REHEARSE_HAS_SIM
  const SimOptions options{.fidelity = level == Level::chunk ? Fidelity::chunk : Fidelity::fluid,
                           .profile = profile,
                           .slow = slow};
  const auto simulated = [&](int) {
    const double seconds = traced([&](TraceSink& sink) {
      return simulate(linked, costs, job.cluster, disturber, 1, sink, options).seconds;
    });
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

void check_migration(const Job& job, const Plan& first) { change_of(job, first); }

std::string migration_trace(const std::string& trace) {
  return std::filesystem::path(trace).replace_extension(".migration.json").string();
}

MigrationStudy study_migration(const Job& job, const Plan& first, Level level,
                               const std::string& trace) {
  const Change change = change_of(job, first);
  const std::optional<Profile> profile = profile_of(job);
  const Profile* measured = profile ? &*profile : nullptr;
  const std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  const Costs costs(change.linked, job.model, job.cluster, first.rank_to_device, job.plan.optimizer,
                    measured, slow);

  MigrationStudy out{.from = first.method,
                     .mesh = change.from.program.mesh,
                     .after_step = job.adaptive.warmup_steps,
                     .seconds = seconds_of(change.linked, job, costs, level, measured, slow, trace),
                     .bytes = static_cast<double>(change.migration.sent_bytes),
                     .memory = change.memory};
  for (Id role = 0; role < change.linked.program.roles.size(); ++role) {
    double sent = 0;
    for (Id op = 0; op < change.linked.program.roles[role].ops.size(); ++op)
      sent += costs.bytes_sent(role, op)[0];
    out.bytes_most = std::max(out.bytes_most, sent);
  }
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
