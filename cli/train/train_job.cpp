// With --nproc, checks the job once and starts the ranks. Without --nproc, the process is one rank
// of torchrun, Slurm, mpirun or our own launcher, or the only rank.
#include "cli/train/train_job.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/console/files.h"
#include "cli/console/guarded.h"
#include "cli/console/json_out.h"
#include "cli/console/teller.h"
#include "cli/train/after_warm_up.h"
#include "cli/train/check_recovery.h"
#include "cli/train/recover.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/costs/profile.h"
#include "engine/planner/adaptive.h"
#include "engine/planner/memory/linked_program.h"
#include "engine/tensors/variance.h"
#include "runtime/checkpoints/files/folder_lock.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/huggingface.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/membership/agent.h"
#include "runtime/device/load_device.h"
#include "runtime/training/run_start.h"
#include "runtime/training/train.h"
#include "study/load.h"
#include "study/planning/decision.h"
#include "study/planning/rehearsal.h"
#include "study/prediction/study_migration.h"

namespace rehearse::cli {
namespace {

/// Throws InputError when --import or --export does not suit the job.
void check_weights(const job::Job& job, const TrainFlags& options) {
  if (options.weights.empty() && options.out_weights.empty()) return;
  if (!options.weights.empty() && options.resume)
    throw InputError(
        "--import and --resume exclude each other: a checkpoint has weights of its own");
  if (!options.out_weights.empty() && job.train.out.empty())
    throw InputError("--export needs train.out, the folder of the checkpoint that it reads");
}

/// The job with its plan (decided here when the job leaves it open), and the plan of the warm-up.
struct Prepared {
  job::Job job = {};
  planner::AdaptiveRun run = {};
};

Prepared prepare_run(const Context& context, const TrainFlags& options, int ranks, Teller* teller) {
  Context with = context;
  if (!options.faults.empty())
    with.set.push_back(fmt::format("faults.trace=\"{}\"", options.faults));
  Prepared out{.job = study::load_for(options.job, with.set, ranks)};
  job::Job& job = out.job;
  if (!job.train.out.empty()) will_write("train.out", runtime::metrics_path(job.train.out));
  if (job.model.software != software::Software{})
    throw InputError(fmt::format(
        "{}: software \"{}\" is not what `rehearse train` runs: leave [software] out, or simulate "
        "the job",
        options.job, job.model.software.name));
  if (job.plan.fp8)
    throw InputError(fmt::format(
        "{}: method.precision: \"fp8\" is simulated only, `rehearse train` has no 8-bit "
        "products; nearest: \"bf16\"",
        options.job));
  runtime::check_device(job.run.device);
  runtime::check_threads(job);
  check_survival(job);
  const std::optional<plan::Decision> decided = study::decide_plan(job, teller);
  if (!options.profile_out.empty() && job.plan.exchange.observe == 0)
    job.plan.exchange.observe = tensors::default_observe_stride;
  planner::ReplaceOnce::Decide decide;
  if (decided) decide = decide_after_warm_up(job, options.job, context.set);
  out.run = adaptive_run(job, decided ? &*decided : nullptr, std::move(decide));
  return out;
}

/// Replaces the gradient variances of the job's model in the profile at `path`; other entries of
/// the file stay. Creates the file if there is none.
void write_variances(const std::string& path, const job::Job& job,
                     const std::vector<tensors::LayerVariance>& variances, bool quiet) {
  costs::Profile profile;
  if (std::filesystem::exists(path)) profile = costs::load_profile(path);
  replace_variances(profile, job.model.name, variances);
  write_file(path, to_json(profile));
  if (!quiet && !variances.empty())
    fmt::print("{}: variances of {} layers over {} steps\n", path, variances.size(),
               variances.front().observed_steps);
}

nlohmann::ordered_json to_json(const job::Job& job, const runtime::TrainSummary& s) {
  // Null: not known.
  const auto known = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json changes = nlohmann::ordered_json::array();
  for (const runtime::Replacement& r : s.replacements)
    changes.push_back(
        {{"step", r.step}, {"plan", r.plan}, {"seconds", r.seconds}, {"bytes", r.bytes}});
  nlohmann::ordered_json evaluated = nlohmann::ordered_json::object();
  for (const auto& [folder, loss] : s.evaluated) evaluated[folder] = loss;
  nlohmann::ordered_json out{{"schema_version", 1}, {"method", job.plan.method}};
  study::add_subject(study::subject_of(job.model, job.cluster, job.plan), out);
  out.update(nlohmann::ordered_json{
      {"world_size", job.plan.mesh.world_size()},
      {"first_step", s.first_step},
      {"end_step", s.end_step},
      {"starts", s.starts},
      {"first_loss", s.first_loss},  // NaN is written as null
      {"last_loss", s.last_loss},
      {"validation_loss", s.validation_loss},
      {"evaluated", std::move(evaluated)},
      {"losses", s.losses},
      {"step_times_s", s.step_times},
      {"median_step_s", known(s.median_step_s)},
      {"tokens_per_s", known(s.tokens_per_s)},
      {"mfu", known(s.mfu)},
      {"bytes_sent_by_rank_0", s.bytes_sent},
      {"peak_device_bytes_of_rank_0", s.peak_device_bytes > 0
                                          ? nlohmann::ordered_json(s.peak_device_bytes)
                                          : nlohmann::ordered_json()},
      {"plan_changes", std::move(changes)},
      {"checkpoint", s.checkpoint},
      {"signal", s.signal}});
  return out;
}

/// One start of this rank. `agent` null: the launcher has none.
runtime::TrainSummary run_start(const Context& context, const TrainFlags& options,
                                const runtime::Environment& environment,
                                const runtime::Agent* agent) {
  auto [job, run] = prepare_run(context, options, environment.world_size, nullptr);
  check_weights(job, options);
  check_slow_rank(job, agent != nullptr);
  std::optional<runtime::FolderLock> lock;
  if (environment.rank == 0 && !options.folder_locked && !job.train.out.empty())
    lock.emplace(job.train.out);
  if (options.rehearsed) study::check_rehearsal(job);
  job::Job first = job;
  first.plan = std::move(run.first);
  if (run.warms_up && environment.rank == 0 && !context.quiet && !context.json)
    fmt::print("warms up for {} steps under {}: {}\n", job.adaptive.warmup_steps, first.plan.method,
               planner::summary_of(first.plan));
  runtime::TrainOptions train_options{.resume = options.resume,
                                      .resume_from = options.resume_from,
                                      .overwrite = options.overwrite,
                                      .import_weights = options.weights,
                                      .trace = options.trace,
                                      .quiet = context.quiet || context.json,
                                      .faults = replayed_faults(job),
                                      .policy = std::move(run.policy)};
  if (agent != nullptr) {
    train_options.began = [agent](std::int64_t step) {
      agent->tell({.kind = runtime::ReportKind::began, .step = step});
    };
    train_options.evicted = [agent] { agent->tell({.kind = runtime::ReportKind::evicted}); };
    train_options.lost = [agent, timeout = job.run.timeout](Id rank, runtime::Fate fate) {
      using enum runtime::ReportKind;
      const bool is_broken = fate == runtime::Fate::broken;
      agent->tell({.kind = is_broken ? broken : stuck,
                   .rank = static_cast<int>(rank),
                   .silent = is_broken ? 0 : timeout.value});
    };
    train_options.unbalanced = [agent](const std::string& why, const std::vector<int>& shares) {
      agent->tell({.kind = runtime::ReportKind::unbalanced, .text = why, .shares = shares});
    };
  }
  runtime::TrainSummary summary = train(first, environment, train_options);
  if (environment.rank != 0 || summary.drained) return summary;
  if (options.rehearsed) study::add_measured(job, summary.step_times);
  if (!options.out_weights.empty())
    runtime::export_weights(summary.checkpoint, job.model, options.out_weights);
  if (!options.profile_out.empty() && !summary.losses.empty())
    write_variances(options.profile_out, job, summary.variances, context.quiet || context.json);
  if (context.json) std::cout << with_header(context, to_json(job, summary)).dump(2) << "\n";
  return summary;
}

int status_of(const runtime::TrainSummary& summary) {
  return summary.signal != 0 ? 128 + summary.signal : static_cast<int>(good);
}

/// Runs this rank's start. Nothing when it has failed or drained; `report` then says so.
std::optional<int> try_start(const Context& context, const TrainFlags& options,
                             const runtime::Environment& environment, const runtime::Agent& agent,
                             runtime::Report& report) {
  try {
    const runtime::TrainSummary summary = run_start(context, options, environment, &agent);
    if (!summary.drained) return status_of(summary);
    report = {.kind = runtime::ReportKind::drained, .step = summary.end_step};
  } catch (const BackendError& error) {
    report = {.kind = runtime::ReportKind::failed, .text = error.what()};
  }
  return std::nullopt;
}

/// Runs start after start of this process, each as the rank that the launcher assigns.
int run_starts(const Context& context, const TrainFlags& options, const runtime::Agent& agent) {
  Context now = context;
  TrainFlags flags = options;
  std::optional<runtime::Environment> environment;
  runtime::Report report{.kind = runtime::ReportKind::ready};
  if (!agent.stands_by()) {
    const runtime::Environment first = runtime::detect_environment();
    environment = agent.environment_of({.rank = first.rank,
                                        .world_size = first.world_size,
                                        .local_rank = first.local_rank,
                                        .local_world_size = first.local_world_size,
                                        .address = first.master_address,
                                        .port = first.master_port});
  }
  while (true) {
    if (environment)
      if (const auto status = try_start(now, flags, *environment, agent, report)) return *status;
    const auto assignment = agent.next(report);
    if (!assignment) return failed;
    environment = agent.environment_of(*assignment);
    now = context;
    now.set.insert(now.set.end(), assignment->set.begin(), assignment->set.end());
    flags = options;
    if (assignment->first) continue;
    if (assignment->resume_from.empty()) {
      flags.overwrite = true;  // the steps that the failed start has written down
    } else {
      flags.resume = true;
      flags.overwrite = false;
      flags.resume_from = assignment->resume_from;
      flags.weights.clear();
    }
  }
}

int run_rank(const Context& context, const TrainFlags& options) {
  if (const auto agent = runtime::Agent::of_process()) return run_starts(context, options, *agent);
  return status_of(run_start(context, options, runtime::detect_environment(), nullptr));
}

int launch_all(const Context& context, const TrainFlags& options) {
  // Errors are found here, before ranks start, so that they are printed once.
  auto teller = std::make_unique<Teller>(context);
  const int ranks = options.nproc * node_range(options.nnodes).second;
  const auto [job, run] = prepare_run(context, options, ranks, teller.get());
  teller->say("checking the program");
  check_weights(job, options);
  if (options.rehearsed) study::check_rehearsal(job);
  replayed_faults(job);
  // A node may come while the run is in train.out.
  if (options.nnodes.empty() && !options.resume && !options.overwrite && !job.train.out.empty())
    runtime::check_unused(job.train.out);
  planner::fitting_program(job);
  if (job.plan.mesh.world_size() != ranks)
    throw InputError(fmt::format(
        "--nproc {}: the job has {} ranks (pp {} x dp {}{} x tp {}{}); start "
        "as many, or set cluster.world_size",
        ranks, job.plan.mesh.world_size(), job.plan.mesh.pp, job.plan.mesh.dp,
        job.plan.mesh.cp > 1 ? fmt::format(" x cp {}", job.plan.mesh.cp) : "", job.plan.mesh.tp,
        job.plan.mesh.servers > 0 ? fmt::format(" + {} servers", job.plan.mesh.servers) : ""));
  if (run.warms_up) {
    job::Job first = job;
    first.plan = run.first;
    planner::fitting_program(first);
    study::check_migration(job, run.first);
  }
  // Launchers of several nodes share the folder: rank 0 locks it.
  std::optional<runtime::FolderLock> lock;
  if (options.nnodes.empty() && !job.train.out.empty()) lock.emplace(job.train.out);
  teller.reset();  // from here on the ranks print
  TrainFlags of_rank = options;
  of_rank.folder_locked = lock.has_value();
  of_rank.nproc = 0;
  of_rank.nnodes.clear();
  return launch_and_recover(context, options, job,
                            [&] { return guarded([&] { return run_rank(context, of_rank); }); });
}

}  // namespace

int train_job(const Context& context, const TrainFlags& options) {
  if (!options.trace.empty()) check_writable("--trace", options.trace);
  if (!options.out_weights.empty()) check_writable("--export", options.out_weights);
  if (!options.profile_out.empty()) {
    check_writable("--profile-out", options.profile_out, true);
    if (std::filesystem::exists(options.profile_out)) costs::load_profile(options.profile_out);
  }
  if (!options.weights.empty() && !std::filesystem::is_regular_file(options.weights))
    throw InputError(
        fmt::format("--import {}: {}", options.weights,
                    std::filesystem::is_directory(options.weights)
                        ? "is a folder; name the file in it that has the weights, such "
                          "as its model.safetensors"
                        : "does not exist"));
  return options.nproc > 0 ? launch_all(context, options) : run_rank(context, options);
}

}  // namespace rehearse::cli
