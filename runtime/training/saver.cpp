#include "runtime/training/saver.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "engine/job/plan_file.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/executor/fault_injector.h"
#include "runtime/training/replan.h"

namespace rehearse::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

}  // namespace

void Saver::use(PlacedPlan& plan) {
  plan_ = &plan;
  if (placement_ != plan.number) base_ = {};
  placement_ = plan.number;
  plan.executor.on_save(
      [this](std::int64_t step, std::int64_t skipped) { save_behind(step, skipped); });
}

PlanRecord Saver::record() const {
  PlanRecord record{.placements = plan_->number};
  if (record.placements > 0) record.plan = to_toml({.plan = plan_->plan->job.plan}, job_, nullptr);
  return record;
}

SaveTarget Saver::target_of(std::int64_t step, bool last) {
  const Id rank = plan_->context.rank;
  // `full_every` counts from the first checkpoint on, so it does not matter where a run resumed.
  const bool divides = job_.checkpoint.kind != job::CheckpointKind::full;
  const std::int64_t every = job_.train.save_every * job_.checkpoint.full_every;
  const bool whole = last || (every > 0 && step % every == 0);
  if (whole || !store_.used()) {
    SaveTarget target{.folder = job_.train.out,
                      .leads = rank == 0,
                      .divides = divides,
                      .slowdown = disk_slowdown(true),
                      .lane = &lane_};
    if (job_.checkpoint.kind == job::CheckpointKind::incremental) {
      if (whole) base_ = {};
      target.base = &base_;
      target.bits = job_.checkpoint.bits;
    }
    return target;
  }
  SaveTarget target{.folder = store_.folder_of(rank),
                    .leads = store_.leader_of(rank) == rank,
                    .divides = divides,
                    .slowdown = disk_slowdown(false),
                    .lane = &lane_};
  if (job_.checkpoint.kind == job::CheckpointKind::peer) {
    target.to = store_.peers_of(rank);
    target.from = store_.kept_by(rank);
    target.between = &between_;
  }
  return target;
}

double Saver::disk_slowdown(bool shared) const {
  return faults_ == nullptr ? 1 : faults_->disk_slowdown(shared);
}

void Saver::strike(const SaveTarget& target, std::int64_t step) {
  if (faults_ == nullptr) return;
  const std::string shard =
      checkpoint_path(target.folder, step) + "/" + shard_name(plan_->context.rank);
  if (std::filesystem::exists(shard)) faults_->saved(step, shard);
}

/// On the thread of the lane that saves.
void Saver::save_behind(std::int64_t step, std::int64_t skipped) {
  if (job_.train.out.empty()) return;
  const auto began = Clock::now();
  const SaveTarget target = target_of(step, false);
  progress_.drain(step);
  save_snapshot(target, step, plan_->context, plan_->executor, skipped, record());
  strike(target, step);
  const std::lock_guard lock(lock_);
  saved_.push_back({.step = step,
                    .path = checkpoint_path(target.folder, step),
                    .seconds = seconds_since(began)});
}

void Saver::tell(TrainSummary& summary) {
  const std::lock_guard lock(lock_);
  for (const Saved& one : std::exchange(saved_, {})) {
    told_ = one.step;
    told_of_train_out_ = one.path == checkpoint_path(job_.train.out, one.step);
    summary.checkpoint = one.path;
    progress_.saved(one.step, one.path, one.seconds, false);
  }
}

void Saver::save(std::int64_t step, bool last, TrainSummary& summary) {
  tell(summary);
  if (job_.train.out.empty() || (told_ == step && (told_of_train_out_ || !last))) return;
  const auto began = Clock::now();
  if (faults_ != nullptr) faults_->saving(step);
  const SaveTarget target = target_of(step, last);
  const SavedCheckpoint saved =
      save_checkpoint(target, step, plan_->context, plan_->executor, record());
  strike(target, step);
  summary.checkpoint = checkpoint_path(target.folder, step);
  progress_.saved(step, summary.checkpoint, seconds_since(began), true, saved.base);
}

}  // namespace rehearse::runtime
