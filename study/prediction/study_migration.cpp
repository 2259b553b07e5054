#include "study/prediction/study_migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/units.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/trace/chrome_trace.h"
#include "engine/migration/migration.h"
#include "study/load.h"
#include "study/prediction/runs.h"
#ifdef REHEARSE_HAS_SIM
#include <cstring>

#include "sim/executor.h"
#include "sim/processes.h"
#endif

namespace rehearse::study {
namespace {

/// A migration: the program of the first plan (`from`), the migration's own program (`linked`),
/// what it moves, and the memory it needs.
struct Change {
  link::LinkedProgram from = {}, linked = {};
  migration::Migration migration = {};
  std::vector<planner::DeviceNeed> memory = {};
};

/// Throws InputError when the states of both plans do not fit into memory at once.
Change change_of(const job::Job& job, const plan::Plan& first) {
  job::Job job_of_first_plan = job;
  job_of_first_plan.plan = first;
  Change out;
  out.from = link::link(program_of(job_of_first_plan));
  const std::vector<Id>& devices = first.placement.rank_to_device;
  out.migration =
      migration::migrate(out.from, link::link(program_of(job)), job.model,
                         {.distance = migration::distance_on(job.cluster, devices),
                          .played = {},
                          .plays = migration::players(devices, job.plan.placement.rank_to_device)});
  out.linked = link::link(out.migration.program);
  out.memory = planner::device_needs(out.linked, job.cluster, devices);
  const auto text = [](std::int64_t bytes) { return to_text(Bytes(static_cast<double>(bytes))); };
  const auto refuse = [&](std::int64_t bytes, const std::string& where, const std::string& there) {
    throw InputError(fmt::format(
        "the states of both plans do not fit at once: the migration from {} to {} needs {} {}, "
        "which has {}; warm up under a plan that shards more (adaptive.warmup_plan), or run one "
        "plan from the first step (method.plan{})",
        first.method, job.plan.method, text(bytes), where, there,
        job.plan.exchange.sparse.layers.empty() ? ", or method.reduction = \"dense\"" : ""));
  };
  for (const planner::DeviceNeed& need : out.memory)
    if (!need.fits())
      refuse(need.need, "on " + need.kind, planner::capacity_text(need.capacity, need.reserve));
  if (const auto host = planner::short_host(out.linked, job.cluster, first))
    refuse(host->need, fmt::format("in the memory of node {}'s host", host->node),
           text(host->capacity));
  return out;
}

/// Duration of the migration in seconds. `trace`: file for the Chrome trace; empty: none.
double seconds_of(const link::LinkedProgram& linked, const job::Job& job, const costs::Costs& costs,
                  Fidelity fidelity, const costs::Profile* profile, const std::vector<double>& slow,
                  const std::string& trace) {
  const cluster::Disturber disturber(job.disturb, job.plan.mesh.world_size());
  const auto traced = [&](const auto& play) {
    if (trace.empty()) {
      execution::Tee nobody({});
      return play(nobody);
    }
    execution::ChromeTrace file(trace, linked, job.model, {.first_step = 0, .last_step = 0});
    execution::Tee tee({&file});
    const double seconds = play(tee);
    file.close();
    return seconds;
  };
  if (fidelity == Fidelity::analytic)
    return traced([&](execution::TraceSink& sink) {
      return dry_run(linked, costs, disturber, 1, sink).seconds;
    });
#ifdef REHEARSE_HAS_SIM
  const sim::SimOptions options{
      .fidelity = sim_fidelity(fidelity), .profile = profile, .slow = slow};
  const auto simulated = [&](int) {
    const double seconds = traced([&](execution::TraceSink& sink) {
      return simulate(linked, costs, job.cluster, disturber, 1, sink, options).seconds;
    });
    return std::string(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  };
  double seconds = 0;
  std::memcpy(&seconds, sim::in_processes(1, simulated).front().data(), sizeof seconds);
  return seconds;
#else
  (void)profile, (void)slow;
  throw needs_sim(fidelity);
#endif
}

}  // namespace

void check_migration(const job::Job& job, const plan::Plan& first) { change_of(job, first); }

std::string migration_trace(const std::string& trace) {
  return std::filesystem::path(trace).replace_extension(".migration.json").string();
}

MigrationStudy study_migration(const job::Job& job, const plan::Plan& first, Fidelity fidelity,
                               const std::string& trace) {
  const Change change = change_of(job, first);
  const costs::Profile* const measured = profile_of(job);
  const std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  const costs::Costs costs(change.linked, job.model, job.cluster,
                           {.rank_to_device = first.placement.rank_to_device,
                            .optimizer = job.plan.optimizer,
                            .profile = measured,
                            .slow = slow});

  MigrationStudy out{
      .from = first.method,
      .mesh = change.from.program.mesh,
      .after_step = job.adaptive.warmup_steps,
      .seconds = seconds_of(change.linked, job, costs, fidelity, measured, slow, trace),
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
  for (const program::Axis& axis : s.mesh) mesh[axis.name] = axis.size;
  for (const planner::DeviceNeed& need : s.memory) memory[need.kind] = need.need;
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

}  // namespace rehearse::study
