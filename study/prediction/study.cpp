#include "study/prediction/study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files/json_text.h"
#include "engine/base/names.h"
#include "engine/base/refusal.h"
#include "engine/base/units.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/dry_run/fold.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/linked_program.h"
#include "engine/planner/placement/rank_grid.h"
#include "engine/program/phases.h"
#include "study/calibration/interval.h"
#include "study/load.h"
#include "study/long_runs/fault_study.h"
#include "study/prediction/runs.h"
#include "study/progress.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/run_seeds.h"
#endif

namespace rehearse::study {
namespace {

/// Measures wall-clock seconds between calls of lap().
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Whether the steps of a run differ by chance.
bool random_steps(const cluster::Disturbance& d) { return d.compute_sigma > 0 || d.link_sigma > 0; }
/// Whether runs with different seeds differ.
bool random(const cluster::Disturbance& d) {
  return random_steps(d) || (d.straggler_probability > 0 && d.straggler_probability < 1);
}

/// When the run of a seed is enough. That does not depend on the other seeds.
/// `repetition`: as of the program that runs.
execution::Stopping stopping(const job::Job& job, const StudyOptions& options, int repetition) {
  const bool by_chance = random_steps(job.disturb);
  // Steps with a checkpoint or an exchange of weights differ from those without one, so all steps
  // are run.
  if (repetition > 1) return {};
  return {.at_period = options.precision > 0 && !by_chance,
          .precision = by_chance ? options.precision : 0,
          .least = options.trace.empty() ? 0 : options.steps.warm_up + traced_steps};
}

void tell(const job::Job& job, const StudyOptions& options, const std::string& what) {
  if (options.progress != nullptr) options.progress->say(job.plan.method + ": " + what);
}

void tell(const Runs& runs, int done) {
  tell(runs.job, runs.options, fmt::format("{} of {} seeds done", done, runs.seeds));
}

/// By rank.
std::vector<Id> kinds_of_devices(const job::Job& job, const costs::Costs& costs) {
  std::vector<Id> out;
  for (const Id device : costs.rank_to_device()) out.push_back(job.cluster.devices()[device].kind);
  return out;
}

std::vector<execution::Metrics> run_analytic(const Runs& runs) {
  std::vector<execution::Metrics> out;
  const job::Job& job = runs.job;
  const execution::Steps steps = runs.options.steps;
  for (int i = 0; i < runs.seeds; ++i) {
    const cluster::Disturber disturber = disturber_of(runs, i);
    const auto trace = trace_writer(runs, steps.warm_up, i);
    // Equal ranks are computed once, unless each has a place in a trace.
    std::optional<execution::Fold> fold;
    if (!trace && disturber.quiet_compute() && disturber.quiet_links() &&
        !execution::needs_events(runs.linked))
      fold = execution::fold(runs.linked, runs.costs, kinds_of_devices(job, runs.costs));
    execution::MetricsSink metrics(runs.linked, job.model, job.cluster, runs.costs,
                                   job.plan.schedule.global_batch, steps, runs.stopping,
                                   fold ? &*fold : nullptr);
    std::vector<execution::TraceSink*> sinks{&metrics};
    if (trace) sinks.push_back(trace.get());
    execution::Tee tee(sinks);
    if (fold)
      dry_run_folded(runs.linked, runs.costs, *fold, steps.begun(), &tee);
    else
      dry_run(runs.linked, runs.costs, disturber, steps.begun(), tee);
    if (trace) trace->close();
    out.push_back(metrics.finish());
    tell(runs, i + 1);
  }
  return out;
}

#ifdef REHEARSE_HAS_SIM
std::vector<execution::Metrics> run_simulated(const Runs& runs) {
  const job::Job& job = runs.job;
  sim::SeedOptions options;
  options.seeds = runs.seeds;
  options.samples_per_step = job.plan.schedule.global_batch;
  options.steps = runs.options.steps;
  options.stopping = runs.stopping;
  options.sim = sim_options(runs);
  options.processes.jobs = runs.options.jobs;
  options.processes.progress = [&](int done) { tell(runs, done); };
  options.sink = [&](int i) { return trace_writer(runs, runs.options.steps.warm_up, i); };
  std::vector<execution::Metrics> out;
  for (sim::SeedRun& run :
       run_seeds(runs.linked, job.model, job.cluster, runs.costs, job.disturb, options))
    out.push_back(std::move(run.metrics));
  return out;
}
#else
std::vector<execution::Metrics> run_simulated(const Runs& runs) {
  throw needs_sim(runs.options.fidelity);
}
#endif

/// Why the measurements that the software rests on say nothing of this job; empty: they do, or a
/// profile of real ranks replaces them.
std::string outside_of_measured(const job::Job& job, const costs::Costs& costs) {
  if (!job.profile.path().empty() && costs.calibrated()) return "";
  if (job.plan.fp8) return "no constant was fitted to steps in FP8";
  if (job.model.experts > 0) return "no constant was fitted to mixtures of experts";
  const std::string why = job.model.software.measured.outside(measured_job(job));
  if (!why.empty()) return why;
  const std::set<Id> nodes(job.plan.placement.node_of.begin(), job.plan.placement.node_of.end());
  const bool tcp = std::ranges::any_of(job.cluster.links(),
                                       [](const cluster::Link& link) { return link.tcp_mtu > 0; });
  return nodes.size() > 1 && tcp ? "steps were measured with RDMA between nodes, not with TCP, "
                                   "whose flows may be slower "
                                   "than their link"
                                 : "";
}

/// Says that the slowest device sets the pace, and what would help; empty: devices are alike, or
/// stages or replicas have work of their own.
std::string equal_work_of_unlike_devices(const job::Job& job) {
  const plan::Plan& plan = job.plan;
  std::set<Id> all;
  std::set<std::vector<Id>> replicas;  // kinds of devices
  const planner::RankGrid at(plan);
  for (int d = 0; d < plan.mesh.dp; ++d) {
    std::vector<Id> kinds;
    for (int s = 0; s < plan.mesh.pp; ++s)
      for (int c = 0; c < plan.mesh.cp; ++c)
        for (int t = 0; t < plan.mesh.tp; ++t) {
          const Id rank = at.rank(s, d, t, c);
          kinds.push_back(job.cluster.devices()[plan.placement.rank_to_device[rank]].kind);
        }
    all.insert(kinds.begin(), kinds.end());
    replicas.insert(std::move(kinds));
  }
  if (all.size() < 2 || !plan.schedule.shares.empty()) return "";
  const std::string equal = "unlike devices get equal work: the slowest sets the pace";
  if (replicas.size() > 1)
    return equal +
           "; with method.shares=speed, which many methods can have, faster replicas take "
           "more samples";
  if (plan.mesh.pp == 1) return equal;
  plan::Plan of_equal_work = plan;
  of_equal_work.placement.stages.clear(), of_equal_work.placement.stage_layers.clear();
  if (complete(std::move(of_equal_work), job.model).placement.stages != plan.placement.stages)
    return "";
  return equal +
         "; with method.stage_layers, or as `rehearse plan` finds them, slower devices "
         "take fewer layers";
}

std::vector<std::string> warnings_of(const job::Job& job, const program::Program& program,
                                     const costs::Costs& costs, const Study& study) {
  std::vector<std::string> out = methods::idle_fields(job.plan);
  if (job.where.contains("software.kernels.fp8") && !job.plan.fp8)
    out.push_back(fmt::format("software.kernels.fp8: {} has no effect where method.precision is {}",
                              name_of(job.model.software.fp8),
                              name_of(job::precision_of(job.plan))));
  if (!costs.calibrated()) {
    std::set<std::string> kinds;
    for (Id device : costs.rank_to_device())
      if (!job.cluster.kind_of(device).calibrated) kinds.insert(job.cluster.kind_of(device).name);
    if (!kinds.empty())
      out.push_back(fmt::format("uncalibrated: the efficiency of {} is assumed, not measured",
                                fmt::join(kinds, ", ")));
  }
  if (const std::string why = outside_of_measured(job, costs); !why.empty())
    out.push_back(fmt::format("uncalibrated: software {}: {}", job.model.software.name, why));
  if (study.saving && !study.saving->simulated)
    out.push_back(fmt::format("checkpoints every {} steps are too rare: no simulated step has one",
                              study.saving->every));
  if (const int rare = rarest_left_out(program); rare > 0)
    out.push_back(
        fmt::format("exchanges every {} steps are too rare: no simulated step has one", rare));
  if (const auto& every = job.plan.exchange.averaging.local_steps;
      every && *every > job.train.steps && job.where.contains("train.steps"))
    out.push_back(
        fmt::format("method.local_steps: {}: in train.steps = {} ranks would never exchange "
                    "weights, so `rehearse "
                    "train` refuses this job; at most {}",
                    *every, job.train.steps, job.train.steps));
  if (std::string remark = methods::remark_on(job.plan); !remark.empty())
    out.push_back(std::move(remark));
  if (const std::string equal = equal_work_of_unlike_devices(job); !equal.empty())
    out.push_back(equal);
  if (job.where.contains("train.steps") && study.last_phase >= job.train.steps)
    out.push_back(fmt::format(
        "train.steps: {}: the run ends before the phase that is predicted, which begins at step {}",
        job.train.steps, study.last_phase));
  const int cores = job.cluster.shared_cores();
  if (cores > 0 && study.world_size > cores)
    out.push_back(fmt::format("oversubscribed: {} ranks share {} cores", study.world_size, cores));
  return out;
}

/// What makes the mean step of workers that run freely differ from that of a long run.
std::vector<std::string> about_free_workers(const job::Job& job, Fidelity fidelity,
                                            const program::Program& program,
                                            const std::vector<execution::Metrics>& runs) {
  if (std::ranges::none_of(program.roles, &program::Role::free_running)) return {};
  std::vector<std::string> out;
  if (fidelity != Fidelity::analytic && !random(job.disturb))
    out.emplace_back(
        "without jitter, workers that begin together push together in every step, which takes "
        "longer than out of step: disturb.link_jitter=0.02 ends that");
  double first = 0, second = 0;
  for (const execution::Metrics& run : runs) {
    const auto half = static_cast<std::ptrdiff_t>(run.step_times.size() / 2);
    first += std::accumulate(run.step_times.begin(), run.step_times.begin() + half, 0.0);
    second += std::accumulate(run.step_times.end() - half, run.step_times.end(), 0.0);
  }
  constexpr double noise = 1.1;
  if (first > 0 && std::max(first / second, second / first) > noise)
    out.push_back(
        fmt::format("steps still change: the second half of those that were run took {:.3g} times "
                    "as long as the first half, so a longer run has another mean (more --steps)",
                    second / first));
  return out;
}

std::vector<std::string> idle_unknown(const cluster::Cluster& cluster, const costs::Costs& costs) {
  std::set<std::string> kinds;
  for (Id device : costs.rank_to_device())
    if (const cluster::DeviceKind& kind = cluster.kind_of(device); kind.idle.value == 0)
      kinds.insert(kind.name);
  return {kinds.begin(), kinds.end()};
}

}  // namespace

software::Measured::Job measured_job(const job::Job& job) {
  std::set<std::string> devices;
  for (const Id device : job.plan.placement.rank_to_device)
    devices.insert(job.cluster.kind_of(device).name);
  const double replicas = std::max(1, job.plan.mesh.dp);
  return {.hidden = job.model.hidden,
          .tokens = static_cast<double>(job.plan.schedule.global_batch) / replicas /
                    std::max(1, job.plan.schedule.micro_batches) * job.model.seq_len,
          .ranks = job.plan.mesh.world_size(),
          .method = job.plan.method,
          .precision = std::string(name_of(job::precision_of(job.plan))),
          .devices = std::move(devices)};
}

std::optional<Cost> cost_of(const Study& study) {
  if (!study.rent.known()) return std::nullopt;
  const double per_second = study.rent.per_hour / 3600;
  return Cost{.currency = study.rent.currency,
              .per_hour = study.rent.per_hour,
              .per_step = per_second * study.summary.step_time.mean,
              .per_billion_tokens = 1e9 * per_second / study.summary.tokens_per_s};
}

Study predict(const job::Job& job, const StudyOptions& asked) {
  StudyOptions options = asked;
  Study out;
  Stopwatch watch;
  tell(job, options, "compiling and linking its program");
  const link::LinkedProgram linked =
      planner::fitting_program(job, [&] { out.compile_s = watch.lap(); });
  out.link_s = watch.lap();
  options.steps = execution::with_steps_in_flight(
      whole_repetitions(options.steps, repetition(linked.program)), linked.program);
  const StudyOptions with_faults = options;
  if (asked.faults) options.trace.clear();  // it shows the run with the events
  // What is predicted: the same program in its last phase, with the host's lane where the host
  // takes time.
  out.last_phase = program::last_phase(linked.program);
  std::optional<link::OrderedProgram> hosted;
  if (job.model.software.busy_host() || out.last_phase > 1)
    hosted = link::order(predicted_program_of(job));
  const link::OrderedProgram& played =
      hosted ? *hosted : static_cast<const link::OrderedProgram&>(linked);
  const costs::Profile* const profile = profile_of(job);
  const std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  const costs::Costs costs(played, job.model, job.cluster,
                           {.rank_to_device = job.plan.placement.rank_to_device,
                            .optimizer = job.plan.optimizer,
                            .profile = profile,
                            .slow = slow});
  out.costs_s = watch.lap();

  const Runs runs{job,
                  options,
                  played,
                  costs,
                  profile,
                  slow,
                  random(job.disturb) ? options.seeds : 1,
                  stopping(job, options, repetition(linked.program))};
  tell(runs, 0);
  const std::vector<execution::Metrics> metrics =
      options.fidelity == Fidelity::analytic ? run_analytic(runs) : run_simulated(runs);
  if (asked.faults)
    out.faults = std::make_shared<FaultStudy>(study_faults(
        {job, with_faults, played, costs, runs.profile, slow, runs.seeds, runs.stopping},
        *asked.faults));
  out.run_s = watch.lap();

  out.method = job.plan.method;
  plan::Plan implied;
  if (const auto defaults = methods::strategy_named(job.plan.method).defaults) defaults(implied);
  if (const int zero = job.plan.exchange.sharding.zero; zero != implied.exchange.sharding.zero)
    out.stated_zero = zero;
  out.subject = subject_of(job.model, job.cluster, job.plan);
  out.world_size = linked.program.world_size;
  out.servers = job.plan.mesh.servers;
  out.mesh = linked.program.mesh;
  out.shares = job.plan.schedule.shares;
  for (Id device : costs.rank_to_device())
    out.devices.push_back(job.cluster.devices()[device].name);
  for (int i = 0; i < runs.seeds; ++i)
    out.seeds.push_back(job.disturb.seed + static_cast<std::uint64_t>(i));
  out.fidelity = options.fidelity;
  out.steps = {.most = options.steps.measured(), .precision = runs.stopping.precision};
  for (const execution::Metrics& m : metrics) {
    out.steps.by_seed.push_back(m.steps_run);
    out.steps.period = std::max(out.steps.period, m.period);
  }
  out.calibrated = costs.calibrated() && outside_of_measured(job, costs).empty();
  out.summary = summarise(metrics);
  out.deadline = job.plan.exchange.averaging.deadline;
  if (out.summary.in_time == 0)
    throw Refused({"method.deadline",
                   fmt::format("method.deadline: {}: no client ends its {} local steps in that "
                               "time, so nothing would be learned; it must be longer",
                               to_text(*out.deadline), *job.plan.exchange.averaging.local_steps)});
  if (out.calibrated && !profile) {
    const CalibrationError error = calibration_error();
    const execution::Spread& t = out.summary.step_time;
    out.interval = {(t.mean - t.ci95) / error.factor, (t.mean + t.ci95) * error.factor};
    out.interval_level = error.level;
  }
  out.collectives = collectives_used(linked.program, job.plan.exchange.collective);
  if (const plan::Exchange& x = job.plan.exchange; x.fusion.cycle_time)
    out.fusion = {x.fusion.cycle_time->value, x.bucket_bytes(), x.fusion.fused_after.size() + 1};
  out.saving = saving_of(job, played, costs);
  out.memory = planner::device_needs(linked, job.cluster, job.plan.placement.rank_to_device);
  out.hosts = planner::host_needs(linked, job.cluster, job.plan);
  out.program_hash = hash_of(linked.program);
  out.cluster_hash = job.cluster.hash();
  out.idle_unknown = idle_unknown(job.cluster, costs);
  try {
    out.rent = cluster::rent_of(job.cluster, job.plan.placement.rank_to_device);
  } catch (const InputError& error) {
    throw job::located(job, error);
  }
  out.warnings = warnings_of(job, linked.program, costs, out);
  std::ranges::move(about_free_workers(job, options.fidelity, linked.program, metrics),
                    std::back_inserter(out.warnings));
  warn_of_encryption(job, out.warnings);
  check_finite(to_json(out));
  return out;
}

}  // namespace rehearse::study
