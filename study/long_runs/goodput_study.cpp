#include "study/long_runs/goodput_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/cluster/price.h"
#include "engine/faults/draw.h"
#include "engine/faults/spot.h"
#include "engine/goodput/theory.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "study/load.h"
#include "study/long_runs/fault_study.h"
#include "study/long_runs/rebalance.h"

namespace rehearse::study {
namespace {

using goodput::Ticks;
using goodput::ticks;

/// With fewer recoveries that read a checkpoint, in all runs together, the best interval is chance.
constexpr double fewest_reads = 10;

goodput::Slots slots_of(const job::Job& job, const goodput::Layout& layout, bool drawn) {
  goodput::Slots out{.of_rank = layout.slot_of_rank};
  for (std::size_t slot = 0; slot < layout.node_of_slot.size(); ++slot)
    out.of_node[drawn ? static_cast<Id>(slot) : layout.node_of_slot[slot]] = static_cast<Id>(slot);
  for (std::size_t rank = 0; rank < layout.slot_of_rank.size(); ++rank)
    out.of_device[job.cluster.devices()[job.plan.placement.rank_to_device[rank]].name] =
        layout.slot_of_rank[rank];
  return out;
}

/// "recovery.policy: ..." and "checkpoint.kind: ..." get the place of the key.
[[noreturn]] void refuse(const job::Job& job, const std::string& what) {
  throw job::located(job, InputError(what));
}

}  // namespace

JobFailures failures_of(const job::Job& job, Seconds duration, int seeds) {
  JobFailures out;
  if (job.faults.model.empty() && job.faults.trace.empty())
    refuse(job,
           "faults.model: is missing: a long run needs a failure model (faults/*.toml; as in "
           "--set faults.model=llama3-h100) or faults.trace");
  if (!job.faults.trace.empty()) {
    out.source = job.faults.trace;
    out.traces.push_back(given_trace(job));
    out.spares = out.traces.front().spares;
    out.replacement = out.traces.front().replacement;
    return out;
  }
  faults::FailureModel model = failure_model_of(job);
  if (!job.faults.correlated) model = faults::independent(std::move(model));
  out.source = job.faults.model;
  out.summary = model.summary;
  out.spares = model.spares;
  out.replacement = model.replacement;
  out.of_slots = true;
  const int nodes = static_cast<int>(goodput::layout_of(job.cluster, job.plan).node_of_slot.size());
  out.per_day = job.faults.rate * faults::interruptions_per_day(model, nodes);
  const faults::Drawer draw(model, nodes, job.faults.rate);
  for (int i = 0; i < seeds; ++i) {
    out.seeds.push_back(job.faults.seed + static_cast<std::uint64_t>(i));
    out.traces.push_back(draw(duration, out.seeds.back()));
  }
  return out;
}

namespace {

/// Predicts the job without checkpoints: the walk adds what those cost.
Study unsaved(job::Job job, const StudyOptions& how) {
  job.plan.checkpoints = {};
  return predict(job, how);
}

}  // namespace

LongRuns::LongRuns(const job::Job& job, const LongRunOptions& options)
    : job_(job),
      options_(options),
      failures_(failures_of(job, options.duration, options.seeds)),
      layout_(goodput::layout_of(job.cluster, job.plan)),
      step_(unsaved(job, options.step)),
      state_(goodput::state_bytes(link::order(program_of(job)), job.plan)) {
  const Ticks step = ticks(Seconds(step_.summary.step_time.mean));
  const goodput::Slots slots = slots_of(job, layout_, failures_.of_slots);
  check_rebalance(job);
  goodput::Balanced balanced;
  if (job.recovery.slow_rank == job::SlowRankPolicy::rebalance)
    balanced = [this](const std::vector<Id>& slow, double factor) {
      return factor < job_.recovery.slow_factor ? factor
                                                : balanced_factor(job_, layout_, slow, factor);
    };
  for (const faults::Trace& trace : failures_.traces) {
    goodput::Incidents incidents = incidents_of(
        trace, slots, step, [this](const faults::Event& e) { return slowdown(e); }, balanced);
    elsewhere_ += incidents.elsewhere;
    incidents_.push_back(std::move(incidents.all));
  }
  paid_ = paid_part();
}

/// How many times as long steps take under a slow or lossy link: predicted as the step time is,
/// without what is random.
double LongRuns::slowdown(const faults::Event& e) {
  const double factor =
      e.kind == faults::Kind::packet_loss ? loss_slowdown(job_, e) : std::max(1.0, e.factor);
  const auto step_with = [&](const std::string& link, double times) {
    const auto [known, added] = slow_links_.try_emplace({link, times}, 1.0);
    if (added) {
      job::Job job = job_;
      job.disturb = {};
      if (!link.empty()) job.disturb.slow_links.push_back({.link = link, .factor = times});
      StudyOptions how = options_.step;
      how.seeds = 1;
      known->second = unsaved(std::move(job), how).summary.step_time.mean;
      if (!link.empty()) known->second = std::max(1.0, known->second / slow_links_.at({"", 1.0}));
    }
    return known->second;
  };
  step_with("", 1);
  return step_with(e.link, factor);
}

/// The analytic step time with fewer replicas and at least the whole batch, relative to that of the
/// job. Throws InputError when the job cannot run so.
double LongRuns::relative_step(int replicas) {
  const plan::Plan& plan = job_.plan;
  const int batch = plan.schedule.global_batch, micro = std::max(1, plan.schedule.micro_batches);
  const int samples = std::max(1, batch / plan.mesh.dp / micro);  // of a micro-batch
  StudyOptions how{.fidelity = Fidelity::analytic, .seeds = 1, .progress = options_.step.progress};
  const auto time = [&](int dp, int micro_batches) {
    JobSource source = options_.source;
    for (const std::string& one :
         {fmt::format("method.pp={}", plan.mesh.pp), fmt::format("method.tp={}", plan.mesh.tp),
          fmt::format("method.dp={}", dp), fmt::format("method.micro_batches={}", micro_batches),
          fmt::format("train.global_batch={}", dp * micro_batches * samples),
          fmt::format("cluster.world_size={}",
                      dp * plan.mesh.pp * plan.mesh.cp * plan.mesh.tp + plan.mesh.servers)})
      source.set.push_back(one);
    job::Job one = load(source);
    one.disturb = {};
    return unsaved(std::move(one), how).summary.step_time.mean;
  };
  if (quiet_step_ == 0) {
    job::Job quiet = job_;
    quiet.disturb = {};
    quiet_step_ = unsaved(std::move(quiet), how).summary.step_time.mean;
  }
  const int share = (batch + replicas * samples - 1) / (replicas * samples);
  const int multiple = (share + plan.mesh.pp - 1) / plan.mesh.pp * plan.mesh.pp;
  try {
    return time(replicas, share) / quiet_step_;
  } catch (const InputError&) {
    if (multiple == share) throw;
    return time(replicas, multiple) / quiet_step_;
  }
}

/// The step time with so many replicas, as a multiple of the job's; 0: the job cannot run with so
/// few. Known are those with 0, 1, 2, 4, ... replicas missing, as far as the job can run, each
/// predicted when a walk first needs it; between them it is interpolated.
double LongRuns::fewer(int replicas) {
  const int all = job_.plan.mesh.dp;
  if (fewer_.empty()) fewer_.emplace_back(all, 1.0);
  while (fewer_.back().first > replicas && replicas > too_few_) {
    const int missing = all - fewer_.back().first;
    int next = std::max(1, all - std::max(1, 2 * missing));
    if (next <= too_few_) next = replicas;
    try {
      fewer_.emplace_back(next, std::max(1.0, relative_step(next)));
    } catch (const InputError& error) {
      too_few_ = next;
      why_too_few_ = error.what();
    }
  }
  if (fewer_.back().first > replicas) {
    waits_with_ = std::max(waits_with_, replicas);
    return 0;
  }
  const auto at = std::ranges::find_if(
      fewer_, [replicas](const auto& known) { return known.first <= replicas; });
  if (at->first == replicas) return at->second;
  const auto [above, less] = *std::prev(at);
  return at->second + double(replicas - at->first) / (above - at->first) * (less - at->second);
}

goodput::Setting LongRuns::setting_of(const job::Recovery& recovery,
                                      const job::Checkpoint& checkpoint) {
  const plan::Mesh& mesh = job_.plan.mesh;
  goodput::Setting s;
  s.duration = ticks(options_.duration);
  s.step = std::max<Ticks>(1, ticks(Seconds(step_.summary.step_time.mean)));
  s.ranks_of_slot.resize(layout_.node_of_slot.size());
  s.replicas_of_slot.resize(layout_.node_of_slot.size());
  s.replicas = mesh.dp;
  s.ranks_of_replica = mesh.pp * mesh.cp * mesh.tp;
  s.servers = mesh.servers;
  std::vector<std::set<Id>> replicas(s.ranks_of_slot.size());
  for (std::size_t r = 0; r < layout_.slot_of_rank.size(); ++r) {
    const Id slot = layout_.slot_of_rank[r];
    ++s.ranks_of_slot[slot];
    if (layout_.replica_of_rank[r] != none) {
      replicas[slot].insert(layout_.replica_of_rank[r]);
      continue;
    }
    for (int d = 0; d < mesh.dp; ++d) replicas[slot].insert(static_cast<Id>(d));  // a server
  }
  for (std::size_t slot = 0; slot < replicas.size(); ++slot)
    s.replicas_of_slot[slot] = {replicas[slot].begin(), replicas[slot].end()};
  s.replicated = mesh.dp > 1 && job_.plan.exchange.sharding.zero == 0;
  s.step_with = [step = s.step](int) { return step; };
  s.save_every = job_.train.save_every;
  try {
    s.checkpoint = goodput::checkpoint_prices(checkpoint, state_, layout_, job_.cluster,
                                              job_.model.software.staging);
  } catch (const InputError& error) {
    throw job::located(job_, error);
  }
  if (const std::string why = methods::cannot_save_behind(job_.plan.method); !why.empty()) {
    if (checkpoint.kind == job::CheckpointKind::async) refuse(job_, "checkpoint.kind: " + why);
    // Peer: all ranks stop until the copies have arrived.
    s.checkpoint.stall += std::exchange(s.checkpoint.persist, 0);
  }
  s.copy = goodput::copy_time(state_, layout_, job_.cluster);
  if (recovery.detection) s.detection = ticks(*recovery.detection);
  s.restart = ticks(recovery.restart.value_or(goodput::restart_time(mesh.world_size())));
  s.replacement =
      ticks(recovery.replacement.value_or(failures_.replacement.value_or(Seconds(600))));
  s.replan = ticks(recovery.replan);
  s.takeover = ticks(recovery.takeover);
  s.overhead = recovery.overhead;
  s.spares = recovery.spares.value_or(failures_.spares.value_or(0));
  s.min_ranks = recovery.min_ranks;
  if (s.min_ranks > mesh.world_size())
    refuse(job_, fmt::format("recovery.min_ranks: {}: the job has {} ranks; at most {}",
                             s.min_ranks, mesh.world_size(), mesh.world_size()));
  const goodput::Policy& policy = goodput::policy_named(recovery.policy);
  if (policy.units && !s.replicated)
    refuse(job_,
           fmt::format("recovery.policy: {}: needs data-parallel replicas that each have the whole "
                       "state: method.dp of at least 2, method.zero = 0; restart fits",
                       name_of(recovery.policy)));
  if (policy.shrinks && (!job_.plan_file.empty() || methods::planned(job_.plan.method) ||
                         !job_.plan.schedule.shares.empty()))
    refuse(job_, fmt::format("recovery.policy: {}: needs a job that states its method, without "
                             "plan file and shares; restart fits",
                             name_of(recovery.policy)));
  if (policy.shrinks)
    s.step_with = [this, step = static_cast<double>(s.step)](int replicas_now) {
      return static_cast<Ticks>(std::llround(this->fewer(replicas_now) * step));
    };
  return s;
}

void LongRuns::note_what_the_trace_lacks(LongRun& out) const {
  const faults::Trace& trace = failures_.traces.front();
  if (trace.duration.value > 0 && trace.duration.value < out.duration.value)
    out.notes.push_back(fmt::format("the trace covers {} of {}: nothing fails in the rest",
                                    to_text(trace.duration), to_text(out.duration)));
  // Changed links, "+links.network.bandwidth=...", leave the nodes as they are.
  const auto unchanged = [](const std::string& name) { return name.substr(0, name.find('+')); };
  if (!trace.cluster.empty() && unchanged(trace.cluster) != unchanged(job_.cluster.name()))
    out.notes.push_back(fmt::format(
        "the trace was drawn for {}, the job runs on {}: other nodes than those of the trace never "
        "fail",
        trace.cluster, job_.cluster.name()));
}

/// Of the rent of all nodes, where a trace says when spot instances are there.
double LongRuns::paid_part() const {
  if (!failures_.seeds.empty() || !step_.rent.known()) return 1;
  std::map<Id, std::vector<Id>> devices;  // by node
  for (const Id device : job_.plan.placement.rank_to_device)
    devices[job_.cluster.devices()[device].node].push_back(device);
  const std::vector<double> there =
      faults::spot_seconds(failures_.traces.front(), job_.cluster.nodes(), options_.duration);
  double paid = 0;
  for (const auto& [node, of_node] : devices)
    paid += cluster::rent_of(job_.cluster, of_node).per_hour * there[node];
  return paid / (step_.rent.per_hour * options_.duration.value);
}

LongRun LongRuns::run(const job::Recovery& recovery, const job::Checkpoint& checkpoint) {
  LongRun out{.policy = recovery.policy, .checkpoint = checkpoint, .duration = options_.duration};
  out.label = fmt::format("{}, {}", name_of(recovery.policy), name_of(checkpoint.kind));
  waits_with_ = 0;
  out.setting = setting_of(recovery, checkpoint);
  goodput::Setting& s = out.setting;
  out.nodes = s.slots();
  out.step = goodput::seconds(s.step);
  out.bytes = state_.whole;
  out.paid = paid_;
  out.between = goodput::between_incidents(incidents_, s);
  const goodput::Policy& policy = goodput::policy_named(recovery.policy);
  const Seconds stall = goodput::seconds(s.checkpoint.stall);
  out.scores = goodput::score_intervals(s, policy, incidents_);
  out.searched = s.save_every == 0 && !out.scores.empty();
  if (out.searched) s.save_every = goodput::best(out.scores).save_every;
  out.summary = goodput::walk_all(s, policy, incidents_);
  if (out.summary.interruptions > 0)
    out.at_risk += out.summary.destroyed / out.summary.interruptions *
                   std::max(0, s.checkpoint.whole_every - 1);
  out.young = goodput::young(stall, out.between, out.at_risk);
  out.daly = goodput::daly(stall, out.between, out.at_risk);
  if (recovery.policy == job::RecoveryPolicy::restart && out.between.value > 0 &&
      s.save_every > 0) {
    const goodput::Summary& m = out.summary;
    const auto of = [&](goodput::Loss l) { return m.lost[static_cast<std::size_t>(l)]; };
    const double each =
        (of(goodput::Loss::detection) + of(goodput::Loss::restart) + of(goodput::Loss::waiting)) /
        std::max(1.0, m.interruptions);
    const double slower = 1 + s.overhead;
    out.closed_form_goodput =
        goodput::expected_ratio(static_cast<double>(s.save_every) * slower * out.step, stall,
                                out.between, Seconds(each), out.at_risk) /
        slower;
  }
  const double reads = out.summary.reads * static_cast<double>(incidents_.size());
  if (out.searched && !failures_.seeds.empty() && reads < fewest_reads)
    out.notes.push_back(fmt::format(
        "the best interval rests on {:.0f} recover{} that read a checkpoint, of {:.0f} "
        "interruptions in {} run{}: more seeds make it surer; train.save_every states one",
        reads, reads == 1 ? "y" : "ies",
        out.summary.interruptions * static_cast<double>(incidents_.size()), incidents_.size(),
        incidents_.size() == 1 ? "" : "s"));
  if (waits_with_ > 0 && policy.shrinks)
    out.notes.push_back(fmt::format("with {} ranks the run waits for more: {}",
                                    s.ranks_with(waits_with_), why_too_few_));
  for (const auto& [key, read] : {std::pair("takeover", policy.stands_by),
                                  {"replan", policy.goes_on_with_fewer()},
                                  {"min_ranks", policy.goes_on_with_fewer()}})
    if (!read && recovery.policy == job_.recovery.policy &&
        job_.where.contains(fmt::format("recovery.{}", key)))
      out.notes.push_back(fmt::format("recovery.{} has no effect with recovery.policy = {}", key,
                                      name_of(recovery.policy)));
  if (out.paid < 1)
    out.notes.push_back(fmt::format(
        "spot instances are paid while they are there: {:.1f}% of the rent of all nodes",
        100 * out.paid));
  if (elsewhere_ > 0)
    out.notes.push_back(fmt::format("{} event{} on nodes that the job does not use", elsewhere_,
                                    elsewhere_ == 1 ? "" : "s"));
  for (const auto& [of, factor] : slow_links_)
    if (!of.first.empty())
      out.notes.push_back(
          fmt::format("steps take {:.4g} times as long while transfers over {} take "
                      "{:.4g} times as long",
                      factor, of.first, of.second));
  if (failures_.seeds.empty()) note_what_the_trace_lacks(out);
  if (!job_.recovery.spares && out.setting.spares > out.nodes)
    out.notes.push_back(fmt::format(
        "the failure model has {} spare nodes, more than the job's {}: all are paid and "
        "used here; recovery.spares states your own number",
        out.setting.spares, out.nodes));
  if (out.summary.waiting_at_end > 0)
    out.notes.push_back(fmt::format("{} of {} runs end while they wait for nodes",
                                    out.summary.waiting_at_end, incidents_.size()));
  if (out.summary.undetected > 0)
    out.notes.push_back(fmt::format("{:.3g} wrong computations a run are not noticed when it ends",
                                    out.summary.undetected));
  if (s.checkpoint.group > 0 && s.checkpoint.whole_every == 0)
    out.notes.push_back(
        fmt::format("cluster {} states no shared_disk: a failure that destroys what nodes hold "
                    "({:.0f}% of them) "
                    "begins the run anew",
                    job_.cluster.name(),
                    100 * out.summary.destroyed / std::max(1.0, out.summary.interruptions)));
  if (out.summary.steps < 1) out.notes.emplace_back("no run finishes a step");
  return out;
}

std::optional<RunCost> cost_of(const LongRun& run, const Study& step) {
  if (!step.rent.known()) return std::nullopt;
  const double hours = run.duration.value / 3600,
               spares = double(run.setting.spares) / run.nodes * step.rent.per_hour;
  RunCost out{.currency = step.rent.currency, .per_hour = step.rent.per_hour + spares};
  out.spares = spares * hours;
  out.whole = run.paid * step.rent.per_hour * hours + out.spares;
  const double tokens = run.summary.productive * step.summary.tokens_per_s;
  if (tokens > 0) out.per_billion_tokens = 1e9 * out.whole / tokens;
  return out;
}

}  // namespace rehearse::study
