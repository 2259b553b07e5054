#include "engine/execution/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/quantiles.h"
#include "engine/base/vectorise.h"
#include "engine/execution/chrome_trace.h"
#include "engine/execution/occupancy.h"
#include "engine/execution/work_parts.h"

namespace rehearse::execution {
namespace {

// Eight partial sums: a fixed order of additions, so the result is the same on every machine.
REHEARSE_CLONES double total(const double* start, const double* end, std::size_t n) {
  double lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::size_t j = 0; j < 8; ++j) lanes[j] += end[i + j] - start[i + j];
  for (; i < n; ++i) lanes[0] += end[i] - start[i];
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

/// Power of the devices of a role, in watts.
struct Power {
  double idle = 0;                   // summed over places
  std::vector<double> working = {};  // busy minus idle, by place; one entry if all are equal
  double joules = 0;                 // energy of `working` while ops ran

  void add(const cluster::DeviceKind& kind) {
    idle += kind.idle.value;
    working.push_back(kind.busy.value - kind.idle.value);
  }
  void squeeze() {
    if (std::all_of(working.begin(), working.end(), [&](double w) { return w == working[0]; }))
      working.resize(1);
  }
  void work(Id first, const double* start, const double* end, std::size_t n, double seconds) {
    if (working.size() == 1)
      joules += working[0] * seconds;
    else
      for (std::size_t i = 0; i < n; ++i) joules += working[first + i] * (end[i] - start[i]);
  }
};

}  // namespace

struct MetricsSink::Impl {
  const link::LinkedProgram& linked;
  const model::ModelSpec& model;
  int samples;
  Steps steps;
  double peak = 0;  // FLOP/s of all ranks that compute
  bool peak_known = true, power_known = true;
  std::int64_t computing = 0;
  double sent_mean = 0, sent_max = 0, sent_total = 0;

  struct RoleState {
    Id compute_lane = none;
    std::vector<std::uint8_t> kind = {};  // by op: how it is counted
    Occupancy occupancy = {0, 1};
    double busy = 0, covered = 0;  // seconds in steady steps, summed over places
    Power power = {};
  };
  enum Kind : std::uint8_t { other, compute, communication, serving };
  std::vector<RoleState> roles = {};
  std::vector<double> ends = {};           // by step
  std::vector<std::int64_t> missing = {};  // by step: (rank, op) instances still to come
  int served = 0;                          // number of leading steps that are complete

  void build(const cluster::Cluster& cluster, const costs::Costs& costs) {
    const program::Program& p = linked.program;
    const auto all =
        static_cast<std::size_t>(steps.warm_up) + static_cast<std::size_t>(steps.steady);
    std::int64_t instances = 0;
    std::vector<double> sent(static_cast<std::size_t>(p.world_size), 0.0);
    // 8 MB of gaps in all: hundreds per rank for small world sizes, 32 per rank for 16,384 ranks.
    const std::size_t capacity = std::clamp<std::size_t>(
        (std::size_t{1} << 19) / static_cast<std::size_t>(p.world_size), 16, 4096);
    for (Id r = 0; r < p.roles.size(); ++r) {
      const program::Role& role = p.roles[r];
      RoleState& state = roles.emplace_back();
      state.compute_lane = compute_lane_of(role);
      program::DType dtype = program::DType::f32;
      for (Id o = 0; o < role.ops.size(); ++o) {
        const program::Op& op = role.ops[o];
        if (std::holds_alternative<program::Compute>(op.work)) {
          if (const program::Ref* param = find(op, program::Slot::param))
            dtype = role.storages[role.views[param->view].storage].dtype;
        }
        const auto row = costs.bytes_sent(r, o);
        for (std::size_t i = 0; i < role.ranks.size(); ++i)
          sent[role.ranks[i]] += row[row.size() == 1 ? 0 : i];
      }
      for (const program::Op& op : role.ops)
        state.kind.push_back(communicates(op.work)           ? communication
                             : state.compute_lane == none    ? serving
                             : op.lane == state.compute_lane ? compute
                                                             : other);
      for (Id rank : role.ranks) {
        const cluster::DeviceKind& kind = cluster.kind_of(costs.rank_to_device()[rank]);
        state.power.add(kind);
        power_known = power_known && kind.busy.value > 0;
      }
      state.power.squeeze();
      if (!role.free_running)
        instances += static_cast<std::int64_t>(role.ops.size() * role.ranks.size());
      if (state.compute_lane == none) continue;
      state.occupancy = Occupancy(role.ranks.size(), capacity);
      computing += static_cast<std::int64_t>(role.ranks.size());
      for (Id rank : role.ranks) {
        const cluster::DeviceKind& kind = cluster.kind_of(costs.rank_to_device()[rank]);
        peak += (dtype == program::DType::bf16  ? kind.peak_bf16
                 : dtype == program::DType::f16 ? kind.peak_f16
                                                : kind.peak_f32)
                    .value;
      }
    }
    // Shared CPU cores have no data-sheet peak, so MFU is not defined.
    peak_known = cluster.shared_cores() == 0;
    ends.assign(all, 0.0);
    missing.assign(all, instances);
    for (double bytes : sent) {
      sent_total += bytes;
      sent_max = std::max(sent_max, bytes);
    }
    sent_mean = sent_total / static_cast<double>(sent.size());
  }
};

MetricsSink::MetricsSink(const link::LinkedProgram& linked, const model::ModelSpec& model,
                         const cluster::Cluster& cluster, const costs::Costs& costs,
                         int samples_per_step, Steps steps)
    : impl_(std::make_unique<Impl>(Impl{linked, model, samples_per_step, steps})) {
  assert(steps.steady > 0 && steps.warm_up >= 0);
  impl_->build(cluster, costs);
}
MetricsSink::~MetricsSink() = default;

void MetricsSink::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                         std::span<const double> ends) {
  Impl& m = *impl_;
  const std::size_t n = starts.size();
  if (!m.linked.program.roles[role].free_running) {
    const auto at = static_cast<std::size_t>(step);
    if (at < m.ends.size()) {
      m.ends[at] = largest(ends.data(), n, m.ends[at]);
      m.missing[at] -= static_cast<std::int64_t>(n);
      while (m.served < m.steps.warm_up + m.steps.steady &&
             m.missing[static_cast<std::size_t>(m.served)] == 0)
        ++m.served;
    }
  }
  Impl::RoleState& state = m.roles[role];
  const auto kind = state.kind[op];
  if (kind == Impl::other || (kind == Impl::communication && state.compute_lane == none)) return;
  const double covered =
      kind == Impl::serving ? 0 : state.occupancy.cover(first_place, starts.data(), ends.data(), n);
  // A free-running role has its own step numbers, so its ops count for the step that the other
  // roles are at.
  const int at = m.linked.program.roles[role].free_running ? m.served : step;
  if (at < m.steps.warm_up || at >= m.steps.warm_up + m.steps.steady) return;
  state.covered += covered;
  if (kind == Impl::communication) return;
  const double seconds = total(starts.data(), ends.data(), n);
  state.power.work(first_place, starts.data(), ends.data(), n, seconds);
  if (kind == Impl::compute) state.busy += seconds;
}

Metrics MetricsSink::finish() const {
  const Impl& m = *impl_;
  for (std::size_t step = 0; step < m.missing.size(); ++step)
    if (m.missing[step] != 0)
      throw ProgramError(
          fmt::format("the trace lacks {} (rank, op) instances of step {}", m.missing[step], step));
  Metrics out;
  const auto first = static_cast<std::size_t>(m.steps.warm_up);
  // Steps may finish out of order where no wait separates them. A step counts as finished when it
  // and all earlier steps have finished.
  double before = 0, latest = 0;
  for (std::size_t step = 0; step < m.ends.size(); ++step) {
    latest = std::max(latest, m.ends[step]);
    if (step >= first) out.step_times.push_back(latest - before);
    before = latest;
  }
  const Spread times = spread(out.step_times);
  out.mean_step = times.mean;
  out.std_step = times.std;
  out.robustness = times.mean > 0 ? 1 - times.std / times.mean : 1;
  const auto tokens = static_cast<std::int64_t>(m.samples) * m.model.seq_len;
  const double duration = times.mean * m.steps.steady;
  if (times.mean > 0) {
    out.samples_per_s = m.samples / times.mean;
    out.tokens_per_s = static_cast<double>(tokens) / times.mean;
    if (m.peak_known && m.peak > 0)
      out.mfu = model_flops(m.model, tokens).value / (times.mean * m.peak);
  }
  double busy = 0, covered = 0;
  for (const auto& role : m.roles) {
    if (m.power_known)
      out.joules_per_step +=
          role.power.idle * times.mean + role.power.joules / std::max(1, m.steps.steady);
    if (role.compute_lane == none) continue;
    busy += role.busy, covered += role.covered;
    out.exposed_exact = out.exposed_exact && role.occupancy.exact();
  }
  if (m.computing > 0) {
    if (duration > 0)
      // Rounding may make the busy time slightly longer than the duration.
      out.bubble_fraction = std::max(0.0, 1 - busy / (duration * static_cast<double>(m.computing)));
    out.exposed_comm_s =
        std::max(0.0, covered - busy) / (static_cast<double>(m.computing) * m.steps.steady);
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
  out.robustness = 0;
  for (const Metrics& m : seeds) {
    steps.push_back(m.mean_step);
    out.samples_per_s += m.samples_per_s / n;
    out.tokens_per_s += m.tokens_per_s / n;
    out.mfu += m.mfu / n;
    out.bubble_fraction += m.bubble_fraction / n;
    out.exposed_comm_s += m.exposed_comm_s / n;
    out.bytes_sent_mean += m.bytes_sent_mean / n;
    out.bytes_sent_max += m.bytes_sent_max / n;
    out.bytes_per_step += m.bytes_per_step / n;
    out.joules_per_step += m.joules_per_step / n;
    out.robustness += m.robustness / n;
  }
  out.step_time = spread(std::move(steps));
  return out;
}

}  // namespace rehearse::execution
