#include "runtime/training/placed.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "engine/base/fnv.h"
#include "engine/link/workspace.h"
#include "engine/migration/migration.h"
#include "engine/planner/memory/linked_program.h"

namespace rehearse::runtime {
namespace {

job::Job with_plan(job::Job job, plan::Plan plan) {
  job.plan = std::move(plan);
  return job;
}

Wiring wiring_of(const LinkedPlan& plan, int number) {
  // Channels of the first plan keep their names; those of later plans get a prefix.
  Wiring wiring{.prefix = number == 0 ? std::string() : fmt::format("plan{}.", number)};
  wiring.process_of.resize(plan.plays.size());
  for (Id process = 0; process < plan.plays.size(); ++process)
    wiring.process_of[plan.plays[process]] = process;
  return wiring;
}

}  // namespace

LinkedPlan::LinkedPlan(const job::Job& base, plan::Plan plan, const std::vector<Id>& devices)
    : job(with_plan(base, std::move(plan))),
      linked(planner::fitting_program(job)),
      plays(migration::players(devices, job.plan.placement.rank_to_device)) {}

PlacedPlan::PlacedPlan(std::shared_ptr<const LinkedPlan> linked_plan, int number,
                       const RunParts& parts)
    : plan(std::move(linked_plan)),
      number(number),
      disturber(plan->job.disturb, plan->job.plan.mesh.world_size()),
      context{plan->linked,
              plan->job.model,
              plan->job.plan,
              plan->job.train,
              plan->plays.at(static_cast<Id>(parts.control.environment().rank)),
              parts.data,
              parts.network,
              parts.control,
              &disturber,
              wiring_of(*plan, number),
              parts.faults,
              &parts.device},
      executor(context) {}

MigrationRun migrate_state(PlacedPlan& from, PlacedPlan& to, std::int64_t step,
                           const RunParts& parts) {
  const auto process = static_cast<Id>(parts.control.environment().rank);
  const migration::Migration migration =
      migration::migrate(from.plan->linked, to.plan->linked, from.plan->job.model,
                         {.distance = migration::distance_on(from.plan->job.cluster, parts.devices),
                          .played = from.plan->plays,
                          .plays = to.plan->plays});
  const link::LinkedProgram linked = link::link(migration.program);
  parts.control.agree("migration", hash_text(hash_of(linked.program)));
  to.executor.clear();
  std::vector<std::byte*> given;
  for (const migration::MigratedState& state : migration.states[process])
    given.push_back(state.storage == none
                        ? nullptr
                        : (state.old ? from : to).executor.address(state.storage, step, state.age));
  ExecutorContext context = {linked,
                             from.plan->job.model,
                             from.plan->job.plan,
                             from.plan->job.train,
                             process,
                             parts.data,
                             parts.network,
                             parts.control,
                             nullptr,
                             {.prefix = fmt::format("to-plan{}.", to.number), .process_of = {}},
                             nullptr,
                             &parts.device};
  Executor executor(context, given);
  if (parts.trace != nullptr) executor.keep_stamps(executor.role().ops.size());
  parts.control.barrier(fmt::format("before migration {}", to.number));
  const auto began = std::chrono::steady_clock::now();
  MigrationRun run{.ran = executor.run(step, step + 1, {}) > step};
  if (!run.ran) return run;
  parts.control.barrier(fmt::format("after migration {}", to.number));
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  to.executor.skipped_updates(from.executor.skipped_updates());
  run.sent_by_rank = executor.bytes_sent();
  run.sent_bytes = migration.sent_bytes;
  if (parts.trace != nullptr) parts.trace->add(linked, executor, "migration");
  return run;
}

}  // namespace rehearse::runtime
