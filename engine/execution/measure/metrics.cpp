#include "engine/execution/measure/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/numbers/quantiles.h"
#include "engine/base/numbers/vectorise.h"
#include "engine/execution/measure/period.h"
#include "engine/execution/measure/role_shares.h"
#include "engine/execution/trace/chrome_trace.h"
#include "engine/program/rounds.h"

namespace rehearse::execution {

struct MetricsSink::Impl {
  const link::OrderedProgram& linked;
  const model::ModelSpec& model;
  int samples;
  Steps steps;
  Stopping stopping;
  double peak = 0;  // FLOP/s of all ranks that compute
  bool peak_known = true, power_known = true;
  std::int64_t computing = 0;
  double sent_mean = 0, sent_max = 0, sent_total = 0;

  /// Of a role with rounds: when its ranks began theirs, and what they count.
  struct Rounds {
    Id first = none, last = none;    // its first op, and its kernel in_time
    std::vector<double> began = {};  // by place

    void build(const program::Role& role) {
      if (role.round.steps == 0) return;
      for (Id o = 0; o < role.ops.size(); ++o) {
        if (first == none && program::stops(role.ops[o])) first = o;
        if (program::says_in_time(role.ops[o])) last = o;
      }
      began.resize(role.ranks.size());
    }
  };
  struct RoleState : RoleShares {
    Rounds rounds = {};
  };
  std::vector<RoleState> roles = {};
  std::vector<double> ends = {};             // by step
  std::vector<std::int64_t> missing = {};    // by step: (place, op) instances still to come
  std::vector<double> counted_in_time = {};  // by step: share of the samples, at ends of rounds
  std::vector<double> done = {};  // by complete leading step: when it and all before it had ended
  std::optional<PeriodFinder> finder = {};
  std::optional<Period> period = {};  // that the latest complete steps proved
  bool may_stop = false;

  void build(const cluster::Cluster& cluster, const costs::Costs& costs, const Fold* fold) {
    const program::Program& p = linked.program;
    const auto all = static_cast<std::size_t>(steps.measured());
    std::int64_t instances = 0;
    std::vector<double> sent(static_cast<std::size_t>(p.world_size), 0.0);
    for (Id r = 0; r < p.roles.size(); ++r) {
      const program::Role& role = p.roles[r];
      RoleState& state = roles.emplace_back();
      state.rounds.build(role);
      program::DType dtype = program::DType::f32;
      for (Id o = 0; o < role.ops.size(); ++o) {
        const program::Op& op = role.ops[o];
        if (std::holds_alternative<program::Compute>(op.work)) {
          if (const program::Ref* param = find(op, program::Slot::param))
            dtype = role.storages[role.views[param->view].storage].dtype;
        }
        if (op.when.until > 0) continue;  // of the first steps only
        const auto row = costs.bytes_sent(r, o);
        for (std::size_t i = 0; i < role.ranks.size(); ++i)
          sent[role.ranks[i]] += row[row.size() == 1 ? 0 : i] / op.when.every;
      }
      power_known = state.build(linked, r, cluster, costs, all, fold) && power_known;
      if (!role.free_running)
        instances += static_cast<std::int64_t>(role.ops.size() * state.places);
      if (state.compute_lane == none) continue;
      computing += static_cast<std::int64_t>(role.ranks.size());
      for (Id rank : role.ranks) {
        const cluster::DeviceKind& kind = cluster.kind_of(costs.rank_to_device()[rank]);
        peak += (p.fp8                           ? kind.peak_fp8
                 : dtype == program::DType::bf16 ? kind.peak_bf16
                 : dtype == program::DType::f16  ? kind.peak_f16
                                                 : kind.peak_f32)
                    .value;
      }
    }
    // Shared CPU cores have no data-sheet peak, so MFU is not defined.
    peak_known = cluster.shared_cores() == 0;
    ends.assign(all, 0.0);
    counted_in_time.assign(all, 0.0);
    missing.assign(all, instances);
    for (double bytes : sent) {
      sent_total += bytes;
      sent_max = std::max(sent_max, bytes);
    }
    sent_mean = sent_total / static_cast<double>(sent.size());
    const bool numbered = std::none_of(p.roles.begin(), p.roles.end(),
                                       [](const program::Role& r) { return r.free_running; });
    if (stopping.at_period && numbered) finder.emplace(linked, fold);
  }

  void count_in_time(Id role, Id op, int step, Id first_place, std::span<const double> starts) {
    Rounds& rounds = roles[role].rounds;
    if (op != rounds.first && op != rounds.last) return;
    const program::Role& who = linked.program.roles[role];
    for (std::size_t i = 0; i < starts.size(); ++i) {
      double& began = rounds.began[first_place + i];
      if (op == rounds.first && step % who.round.steps == 0) began = starts[i];
      if (op == rounds.last && who.ops[op].when.due(step) &&
          starts[i] - began <= who.round.deadline)
        counted_in_time[static_cast<std::size_t>(step)] +=
            std::get<program::Kernel>(who.ops[op].work).scale *
            roles[role].ranks_at(first_place + static_cast<Id>(i));
    }
  }
  /// Over the rounds that end in so many steady steps; 1: there are none.
  double in_time(int steady) const {
    double sum = 0;
    int rounds = 0;
    for (const program::Role& role : linked.program.roles) {
      if (role.round.steps == 0) continue;
      for (int step = steps.warm_up; step < steps.warm_up + steady; ++step)
        if ((step + 1) % role.round.steps == 0)
          sum += counted_in_time[run_for(step).first], ++rounds;
      break;  // counted_in_time sums over the ranks of all roles, so one role is enough
    }
    return rounds == 0 ? 1 : sum / rounds;
  }

  int served() const { return static_cast<int>(done.size()); }

  /// Notes the steps that are complete, and whether the run may end with them.
  void complete_steps() {
    while (served() < steps.measured() && missing[done.size()] == 0) {
      // Steps may finish out of order where no wait separates them. A step counts as finished when
      // it and all earlier steps have finished.
      done.push_back(std::max(done.empty() ? 0.0 : done.back(), ends[done.size()]));
      if (finder) {
        period = finder->complete(served() - 1, done.back());
        if (period && !shares_repeat(*period)) period.reset();
      }
      may_stop =
          served() == steps.measured() || (served() >= stopping.least && (period || precise()));
      if (may_stop) return;
    }
  }
  /// Whether every role did in the last period what it did in the one before.
  bool shares_repeat(const Period& p) const {
    if (served() < 2 * p.steps) return false;
    const double most = 1e-9 * p.seconds / p.steps;  // for each place
    for (std::size_t r = 0; r < roles.size(); ++r)
      for (std::size_t s = done.size() - static_cast<std::size_t>(p.steps); s < done.size(); ++s) {
        const Share &now = roles[r].shares[s],
                    &then = roles[r].shares[s - static_cast<std::size_t>(p.steps)];
        const double difference =
            std::max(std::abs(now.busy - then.busy), std::abs(now.covered - then.covered));
        if (difference > most * static_cast<double>(linked.program.roles[r].ranks.size()))
          return false;
      }
    return true;
  }
  bool precise() const {
    if (stopping.precision <= 0 || served() <= steps.warm_up) return false;
    const std::vector<double> times = step_times(served());
    return half_width95(times) <= stopping.precision * spread(times).mean;
  }

  /// The steady steps that count: all, or those that were run if no period gives the others.
  int counted() const { return (period ? steps.measured() : served()) - steps.warm_up; }
  /// A step that was run and equals `step`, and how many seconds earlier it was.
  std::pair<std::size_t, double> run_for(int step) const {
    if (step < served()) return {static_cast<std::size_t>(step), 0};
    const int periods = (step - served()) / period->steps + 1;
    return {static_cast<std::size_t>(step - periods * period->steps), periods * period->seconds};
  }
  /// Of the steady steps before step `until`.
  std::vector<double> step_times(int until) const {
    const auto end = [&](int step) {
      if (step < 0) return 0.0;
      const auto [like, later] = run_for(step);
      return done[like] + later;
    };
    std::vector<double> out;
    for (int step = steps.warm_up; step < until; ++step) out.push_back(end(step) - end(step - 1));
    return out;
  }
};

Steps with_steps_in_flight(Steps steps, const program::Program& program) {
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops) steps.beyond = std::max(steps.beyond, op.shift + 1);
  return steps;
}

MetricsSink::MetricsSink(const link::OrderedProgram& linked, const model::ModelSpec& model,
                         const cluster::Cluster& cluster, const costs::Costs& costs,
                         int samples_per_step, Steps steps, Stopping stopping, const Fold* fold)
    : impl_(std::make_unique<Impl>(Impl{linked, model, samples_per_step, steps, stopping})) {
  assert(steps.steady > 0 && steps.warm_up >= 0);
  impl_->build(cluster, costs, fold);
}
MetricsSink::~MetricsSink() = default;

void MetricsSink::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                         std::span<const double> ends) {
  Impl& m = *impl_;
  // A free-running role has its own step numbers, so its ops count for the step that the other
  // roles are at.
  const bool free_running = m.linked.program.roles[role].free_running;
  const auto at = free_running ? m.done.size() : static_cast<std::size_t>(step);
  m.roles[role].count(op, at, first_place, starts, ends);
  if (free_running || at >= m.ends.size()) return;
  if (m.finder) m.finder->record(role, op, step, first_place, starts, ends);
  m.count_in_time(role, op, step, first_place, starts);
  m.ends[at] = largest(ends.data(), ends.size(), m.ends[at]);
  m.missing[at] -= static_cast<std::int64_t>(ends.size());
  if (m.missing[at] == 0) m.complete_steps();
}

bool MetricsSink::may_stop() const { return impl_->may_stop; }

Metrics MetricsSink::finish() const {
  const Impl& m = *impl_;
  for (std::size_t step = 0; step < m.missing.size() && !m.may_stop; ++step)
    if (m.missing[step] != 0)
      throw ProgramError(
          fmt::format("the trace lacks {} (rank, op) instances of step {}", m.missing[step], step));
  Metrics out;
  const int steady = m.counted();
  out.step_times = m.step_times(m.steps.warm_up + steady);
  out.steps_run = m.served();
  out.period = m.period && m.served() < m.steps.measured() ? m.period->steps : 0;
  const Spread times = spread(out.step_times);
  out.mean_step = times.mean;
  out.std_step = times.std;
  out.robustness = times.mean > 0 ? 1 - times.std / times.mean : 1;
  out.in_time = m.in_time(steady);
  const auto tokens = static_cast<std::int64_t>(m.samples) * m.model.seq_len;
  const double duration = times.mean * steady;
  if (times.mean > 0) {
    out.samples_per_s = out.in_time * m.samples / times.mean;
    out.tokens_per_s = out.in_time * static_cast<double>(tokens) / times.mean;
    if (m.peak_known && m.peak > 0)
      out.mfu = out.in_time * model_flops(m.model, tokens).value / (times.mean * m.peak);
  }
  double busy = 0, covered = 0;
  for (const auto& role : m.roles) {
    Share sum;
    for (int step = m.steps.warm_up; step < m.steps.warm_up + steady; ++step)
      sum += role.shares[m.run_for(step).first];
    if (m.power_known) out.joules_per_step += role.power.idle * times.mean + sum.joules / steady;
    if (role.compute_lane == none) continue;
    busy += sum.busy, covered += sum.covered;
    out.exposed_exact = out.exposed_exact && role.occupancy.exact();
  }
  if (m.computing > 0) {
    if (duration > 0)
      // Rounding may make the busy time slightly longer than the duration.
      out.bubble_fraction = std::max(0.0, 1 - busy / (duration * static_cast<double>(m.computing)));
    // A difference of two sums: below this, it is their rounding.
    const double exposed = covered - busy > 1e-12 * covered ? covered - busy : 0;
    out.exposed_comm_s = exposed / (static_cast<double>(m.computing) * steady);
  }
  out.bytes_sent_mean = m.sent_mean;
  out.bytes_sent_max = m.sent_max;
  out.bytes_per_step = m.sent_total;
  return out;
}

Spread spread(std::vector<double> values) {
  Spread out;
  const auto n = static_cast<double>(values.size());
  for (double v : values) out.mean += v / n;
  if (values.size() > 1) {
    double squares = 0;
    for (double v : values) squares += (v - out.mean) * (v - out.mean);
    out.std = std::sqrt(squares / (n - 1));
    out.ci95 = student_t95(static_cast<int>(values.size()) - 1) * out.std / std::sqrt(n);
  }
  out.values = std::move(values);
  return out;
}

Summary summarise(std::span<const Metrics> seeds) {
  Summary out;
  std::vector<double> steps;
  const auto n = static_cast<double>(seeds.size());
  for (const Metrics& m : seeds) steps.push_back(m.mean_step);
  const double total = std::accumulate(steps.begin(), steps.end(), 0.0);
  out.robustness = out.in_time = 0;
  for (const Metrics& m : seeds) {
    // All seeds run the same steps: what counts per second is of the time of all of them.
    const double share = total > 0 ? m.mean_step / total : 1 / n;
    out.samples_per_s += m.samples_per_s * share;
    out.tokens_per_s += m.tokens_per_s * share;
    out.mfu += m.mfu * share;
    out.bubble_fraction += m.bubble_fraction * share;
    out.exposed_comm_s += m.exposed_comm_s / n;
    out.bytes_sent_mean += m.bytes_sent_mean / n;
    out.bytes_sent_max += m.bytes_sent_max / n;
    out.bytes_per_step += m.bytes_per_step / n;
    out.joules_per_step += m.joules_per_step / n;
    out.robustness += m.robustness / n;
    out.in_time += m.in_time / n;
  }
  out.step_time = spread(std::move(steps));
  return out;
}

}  // namespace rehearse::execution
