#include "engine/execution/dry_run/fault_replay.h"

#include <algorithm>
#include <array>

#include "engine/execution/trace/chrome_trace.h"
#include "engine/faults/phase.h"

namespace rehearse::execution {
namespace {

using faults::Kind;

/// Whether the event ends what it strikes.
bool kills(Kind kind) {
  return kind == Kind::rank_dies || kind == Kind::device_dies || kind == Kind::node_dies;
}
bool stands_still(Kind kind) { return kind == Kind::freezes || kind == Kind::hangs; }
bool of_disk(Kind kind) { return kind == Kind::disk_full || kind == Kind::disk_slow; }

/// The step from 0 that an event keyed by a step means: real ranks count from 1.
int step_of(const faults::Event& e) {
  return static_cast<int>(std::clamp<std::int64_t>(e.step - 1, 0, 1 << 30));
}

}  // namespace

FaultReplay::FaultReplay(const faults::Trace& trace, const program::Program& program,
                         const cluster::Cluster& cluster, std::span<const Id> rank_to_device,
                         const FaultDetection& detection)
    : trace_(trace),
      cluster_(cluster),
      rank_to_device_(rank_to_device),
      detection_(detection),
      saves_to_shared_(rank_to_device.size()),
      saves_to_local_(rank_to_device.size()),
      outcomes_(trace.events.size()),
      ranks_(rank_to_device.size()),
      disks_(rank_to_device.size()),
      still_(rank_to_device.size()) {
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (const auto* save = std::get_if<program::Save>(&op.work))
        for (const Id rank : role.ranks) {
          if (save->to == program::Medium::shared_disk) saves_to_shared_[rank] = true;
          if (save->to == program::Medium::local_disk) saves_to_local_[rank] = true;
        }
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const faults::Event& e = trace.events[i];
    if (e.at)
      timed_.push_back(i);
    else if (e.phase != faults::Phase::recovery)  // a run that recovers is no run of steps
      at_step_[step_of(e)].push_back(i);
  }
  std::stable_sort(timed_.begin(), timed_.end(), [&](std::size_t a, std::size_t b) {
    return trace.events[a].at->value < trace.events[b].at->value;
  });
}

double FaultReplay::next() const {
  const double timed =
      next_timed_ < timed_.size() ? trace_.events[timed_[next_timed_]].at->value : never;
  return notices_.empty() ? timed : std::min(timed, notices_.begin()->first);
}

void FaultReplay::reach(double now) {
  while (!stop_ && !notices_.empty() && notices_.begin()->first <= now) {
    const std::size_t event = notices_.begin()->second;
    notices_.erase(notices_.begin());
    stop(event, now);
  }
  while (!stop_ && next_timed_ < timed_.size() &&
         trace_.events[timed_[next_timed_]].at->value <= now)
    strike(timed_[next_timed_++], now);
}

double FaultReplay::begins(Id rank, const program::Op& op, int step, double now) {
  if (const auto due = at_step_.find(step); due != at_step_.end()) {
    const std::optional<faults::Phase> phase =
        op.when.due(step) ? faults::phase_of(op.work) : std::nullopt;
    std::vector<std::size_t> struck;
    std::erase_if(due->second, [&](std::size_t i) {
      const faults::Event& e = trace_.events[i];
      if (e.phase != faults::Phase::begin && e.phase != phase) return false;
      const std::vector<Id> ranks = ranks_of(e);
      const bool mine = ranks.empty() || *std::min_element(ranks.begin(), ranks.end()) == rank;
      if (mine) struck.push_back(i);
      return mine;
    });
    if (due->second.empty()) at_step_.erase(due);
    for (const std::size_t i : struck) {
      outcomes_[i].step = step;
      strike(i, now);
    }
  }
  return free_at(rank, now);
}

double FaultReplay::free_at(Id rank, double now) const {
  double free = now;
  for (bool moved = true; moved;) {
    moved = false;
    for (const Window& w : still_[rank])
      if (w.from <= free && free < w.until) free = w.until, moved = free != never;
  }
  return free;
}

bool FaultReplay::dead(Id rank) const {
  return std::any_of(still_[rank].begin(), still_[rank].end(),
                     [](const Window& w) { return w.until == never; });
}

/// When work of `seconds` that begins at `start` ends under windows that slow it down together.
double FaultReplay::walk(std::span<const Windows* const> windows, double start, double seconds) {
  bool none_matters = true;
  for (const Windows* some : windows)
    for (const Window& w : *some) none_matters = none_matters && w.until <= start;
  if (none_matters) return start + seconds;
  for (double now = start;;) {
    double rate = 1, until = never;
    for (const Windows* some : windows)
      for (const Window& w : *some) {
        if (w.until <= now) continue;
        if (w.from > now) {
          until = std::min(until, w.from);
          continue;
        }
        rate *= w.rate;
        until = std::min(until, w.until);
      }
    if (rate > 0 && (until == never || seconds / rate <= until - now)) return now + seconds / rate;
    if (until == never) return never;
    seconds -= (until - now) * rate;
    now = until;
  }
}

double FaultReplay::end_of(Id rank, const program::Work& work, double start, double seconds) const {
  const std::array all{&ranks_[rank], &disks_[rank]};
  const bool writes = std::holds_alternative<program::Save>(work);
  return walk(std::span(all).first(writes ? 2 : 1), start, seconds);
}

double FaultReplay::end_of(std::span<const Id> ranks, double start, double seconds) const {
  if (!stands_) return start + seconds;
  std::vector<const Windows*> all;
  all.reserve(ranks.size());
  for (const Id rank : ranks)
    if (!still_[rank].empty()) all.push_back(&still_[rank]);
  return walk(all, start, seconds);
}

std::vector<Id> FaultReplay::ranks_of(const faults::Event& e) const {
  std::vector<Id> out;
  for (Id rank = 0; rank < rank_to_device_.size(); ++rank) {
    const cluster::Device& device = cluster_.devices()[rank_to_device_[rank]];
    if (e.rank == rank || (e.node != none && e.node == device.node) ||
        (!e.device.empty() && e.device == device.name))
      out.push_back(rank);
  }
  // A process: of a node's ranks the lowest one.
  if (e.kind == Kind::rank_dies && out.size() > 1) out.resize(1);
  return out;
}

double FaultReplay::detection_of(const faults::Event& e) const {
  if (e.detection.value > 0) return e.detection.value;
  if (detection_.stated) return *detection_.stated;
  return e.kind == Kind::rank_dies || e.kind == Kind::device_dies ? detection_.closed
                                                                  : detection_.silent;
}

/// Why the event has no effect within steps; empty: it has one.
std::string FaultReplay::nothing_of(const faults::Event& e) const {
  switch (e.kind) {
    case Kind::node_returns:
      return "no node waits to return within steps";
    case Kind::checkpoint_truncated:
    case Kind::checkpoint_flipped:
      return "a checkpoint is read only after a failure";
    case Kind::wrong_numbers:
      return "wrong numbers take no time";
    case Kind::disk_full:
    case Kind::disk_slow: {
      bool any = false;
      for (Id rank = 0; rank < disks_.size(); ++rank) any = any || writes_to_disk_of(e, rank);
      return any ? "" : "no step writes to this disk (checkpoint.kind = \"async\" does)";
    }
    default:
      break;
  }
  const faults::Targets targets = takes(e.kind);
  const bool of_ranks = targets.rank || targets.node || targets.device;
  return of_ranks && ranks_of(e).empty() ? "no rank of the job is there" : "";
}

void FaultReplay::strike(std::size_t event, double now) {
  const faults::Event& e = trace_.events[event];
  FaultOutcome& out = outcomes_[event];
  out.struck = true;
  out.at = now;
  out.nothing = nothing_of(e);
  const double until = e.duration.value > 0 && !kills(e.kind) ? now + e.duration.value : never;
  if (!out.nothing.empty() || e.kind == Kind::link_up) {
    out.until = now;
  } else {
    if (until < never) out.until = until;
    of_disk(e.kind) ? act_on_disks(e, now, until) : act_on_ranks(e, now, until);
    // The run notices a failure that is not over by then.
    const double notice = now + detection_of(e);
    if ((kills(e.kind) || stands_still(e.kind)) && notice <= until) notices_.emplace(notice, event);
  }
  if (on_strike && out.nothing.empty()) on_strike(event, now);
}

void FaultReplay::act_on_ranks(const faults::Event& e, double now, double until) {
  if (e.kind != Kind::slows && !stands_still(e.kind) && !kills(e.kind)) return;
  const double rate = e.kind == Kind::slows ? 1 / std::max(1.0, e.factor) : 0;
  for (const Id rank : ranks_of(e)) {
    ranks_[rank].push_back({now, until, rate});
    if (rate > 0) continue;
    still_[rank].push_back({now, until, 0});
    stands_ = true;
  }
}

/// Whether the rank writes to the disk that the event names: all that it writes to, its node's, or
/// the shared one.
bool FaultReplay::writes_to_disk_of(const faults::Event& e, Id rank) const {
  if (e.rank != none) return rank == e.rank && (saves_to_shared_[rank] || saves_to_local_[rank]);
  if (e.node == none) return saves_to_shared_[rank];
  return saves_to_local_[rank] && cluster_.devices()[rank_to_device_[rank]].node == e.node;
}

void FaultReplay::act_on_disks(const faults::Event& e, double now, double until) {
  const double rate = e.kind == Kind::disk_slow ? 1 / std::max(1.0, e.factor) : 0;
  for (Id rank = 0; rank < disks_.size(); ++rank) {
    if (writes_to_disk_of(e, rank)) disks_[rank].push_back({now, until, rate});
  }
}

void FaultReplay::lasts(std::size_t event, double until) { outcomes_[event].until = until; }

void FaultReplay::stop(std::size_t event, double now) {
  if (!stop_) stop_ = {.event = event, .at = outcomes_[event].at, .noticed = now};
}

bool FaultReplay::stop_stuck(double now) {
  std::optional<std::size_t> latest;
  for (std::size_t i = 0; i < outcomes_.size(); ++i)
    if (outcomes_[i].struck && outcomes_[i].nothing.empty() && !outcomes_[i].until &&
        (!latest || outcomes_[i].at >= outcomes_[*latest].at))
      latest = i;
  if (!latest) return false;
  stop(*latest, std::max(now, outcomes_[*latest].at + detection_of(trace_.events[*latest])));
  return true;
}

void FaultReplay::note_waiting(const link::Readiness& readiness) {
  stop_->waiting.clear();
  for (const link::RankLane& lane : readiness.lanes()) {
    if (!lane.busy) continue;
    const program::Program& program = readiness.program();
    const program::Role& role = program.roles[lane.role];
    if (!communicates(role.ops[lane.current.op].work) || dead(role.ranks[lane.place])) continue;
    stop_->waiting.push_back({.rank = role.ranks[lane.place],
                              .step = lane.current.step,
                              .op = to_text(program, role, lane.current.op)});
  }
  std::stable_sort(stop_->waiting.begin(), stop_->waiting.end(),
                   [](const WaitingOp& a, const WaitingOp& b) { return a.rank < b.rank; });
}

bool FaultReplay::quiet(double since, double until, int last_step) const {
  if (next() < until) return false;
  if (!at_step_.empty() && at_step_.begin()->first <= last_step) return false;
  return std::all_of(outcomes_.begin(), outcomes_.end(), [&](const FaultOutcome& o) {
    return !o.struck || o.until.value_or(o.at) <= since;
  });
}

}  // namespace rehearse::execution
