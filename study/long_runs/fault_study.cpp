#include "study/long_runs/fault_study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/faults/spot.h"
#include "engine/faults/trace_file.h"
#include "engine/faults/transport.h"
#include "study/progress.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/fault_runs.h"
#endif

namespace rehearse::study {
namespace {

using execution::FaultOutcome;
using execution::FaultRun;
using Json = nlohmann::ordered_json;

constexpr std::size_t most_waiting = 64;  // ops that wait, in a result

/// The times of steps that end at `ends`.
std::vector<double> times_of(const std::vector<double>& ends) {
  std::vector<double> out(ends.size());
  std::adjacent_difference(ends.begin(), ends.end(), out.begin());
  return out;
}

execution::FaultDetection detection_of(const job::Job& job) {
  execution::FaultDetection out{.silent = (job.run.timeout + job.run.heartbeat).value};
  if (job.recovery.detection) out.stated = job.recovery.detection->value;
  return out;
}

std::string name_of_event(const faults::Trace& trace, std::size_t event) {
  return fmt::format("event {} ({})", event + 1, to_text(trace.events[event]));
}

/// The dry run knows no time on links.
void check_fidelity(const Runs& s, const faults::Trace& trace) {
  if (s.options.fidelity != Fidelity::analytic) return;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const faults::Targets targets = takes(trace.events[i].kind);
    if (targets.link || targets.nodes)
      throw InputError(
          fmt::format("{}: {}: --fidelity analytic has no events of links within steps; fluid and "
                      "chunk have",
                      s.job.faults.trace, name_of_event(trace, i)));
  }
}

std::vector<FaultRun> run_analytic(const Runs& s, const faults::Trace* trace, int first_traced) {
  std::vector<FaultRun> out;
  for (int i = 0; i < s.seeds; ++i) {
    std::optional<execution::FaultReplay> replay;
    if (trace != nullptr)
      replay.emplace(*trace, s.linked.program, s.job.cluster, s.costs.rank_to_device(),
                     detection_of(s.job));
    execution::FaultReplay* const faults = replay ? &*replay : nullptr;
    execution::StepEnds steps(s.linked, s.options.steps.measured(), s.stopping.at_period, faults);
    std::vector<execution::TraceSink*> sinks{&steps};
    const auto chrome = trace != nullptr ? trace_writer(s, first_traced, i) : nullptr;
    if (chrome) sinks.push_back(chrome.get());
    execution::Tee tee(sinks);
    dry_run(s.linked, s.costs, disturber_of(s, i), s.options.steps.begun(), tee, faults);
    if (chrome) {
      mark_events(*chrome, *faults);
      chrome->close();
    }
    out.push_back(run_of(steps, faults));
  }
  return out;
}

#ifdef REHEARSE_HAS_SIM
std::vector<FaultRun> run_simulated(const Runs& s, const faults::Trace* trace, int first_traced) {
  sim::FaultRunOptions how{.seeds = s.seeds,
                           .steps = s.options.steps.measured(),
                           .ahead = s.options.steps.begun() - s.options.steps.measured(),
                           .at_period = s.stopping.at_period,
                           .sim = sim_options(s),
                           .detection = detection_of(s.job)};
  how.processes.jobs = s.options.jobs;
  if (trace != nullptr) how.chrome = [&](int i) { return trace_writer(s, first_traced, i); };
  return run_with_faults(s.linked, s.job.cluster, s.costs, s.job.disturb, trace, how);
}
#else
std::vector<FaultRun> run_simulated(const Runs&, const faults::Trace*, int) {
  return {};  // predict has refused the fidelity
}
#endif

std::vector<FaultRun> run(const Runs& s, const faults::Trace* trace, int first_traced) {
  return s.options.fidelity == Fidelity::analytic ? run_analytic(s, trace, first_traced)
                                                  : run_simulated(s, trace, first_traced);
}

/// The step, from 0, that is under way at a time.
int step_at(const std::vector<double>& ends, double at) {
  return static_cast<int>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
}

/// The step, from 0, in which an event struck.
int step_of(const FaultOutcome& o, const std::vector<double>& ends) {
  return o.step >= 0 ? o.step : step_at(ends, o.at);
}

/// The step of the first event that strikes a run with such steps, or the last step.
int first_struck(const faults::Trace& trace, const std::vector<double>& ends) {
  int first = static_cast<int>(ends.size()) - 1;
  for (const faults::Event& e : trace.events)
    first = std::min(first, e.at ? step_at(ends, e.at->value)
                                 : static_cast<int>(std::max<std::int64_t>(0, e.step - 1)));
  return std::max(0, first);
}

/// Events by the step in which they struck; only those with an effect.
std::map<int, std::vector<std::size_t>> by_step(const FaultRun& run) {
  std::map<int, std::vector<std::size_t>> out;
  for (std::size_t i = 0; i < run.outcomes.size(); ++i)
    if (const FaultOutcome& o = run.outcomes[i]; o.struck && o.nothing.empty())
      out[step_of(o, run.ends)].push_back(i);
  return out;
}

/// By event: the seconds by which the steps from its own to the next event's are longer.
std::vector<double> costs_of(const FaultRun& run, const FaultRun& quiet) {
  std::vector<double> out(run.outcomes.size(), 0.0);
  const auto groups = by_step(run);
  const std::size_t done = std::min(run.ends.size(), quiet.ends.size());
  const auto later = [&](int step) {  // at the end of a step; -1: at the begin
    if (step < 0 || done == 0) return 0.0;
    const std::size_t at = std::min(static_cast<std::size_t>(step), done - 1);
    return run.ends[at] - quiet.ends[at];
  };
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    const auto next = std::next(group);
    const int last = next == groups.end() ? static_cast<int>(done) - 1 : next->first - 1;
    for (const std::size_t event : group->second)
      out[event] = later(last) - later(std::min(group->first, static_cast<int>(done)) - 1);
  }
  return out;
}

void add_notes(const faults::Trace& trace, const FaultRun& run, FaultStudy& out) {
  std::vector<std::size_t> after;
  for (std::size_t i = 0; i < run.outcomes.size(); ++i) {
    const FaultOutcome& o = run.outcomes[i];
    const faults::Event& e = trace.events[i];
    if (o.struck && !o.nothing.empty())
      out.notes.push_back(name_of_event(trace, i) + ": no effect within steps: " + o.nothing);
    if (o.struck) continue;
    if (e.phase == faults::Phase::recovery)
      out.notes.push_back(name_of_event(trace, i) + ": no recovery takes place within steps");
    else if (!e.at && e.step <= out.steps_done)
      out.notes.push_back(fmt::format("{}: its target has no op of the phase {} in step {}",
                                      name_of_event(trace, i), name_of(e.phase), e.step));
    else
      after.push_back(i + 1);
  }
  if (after.empty()) return;
  const double end = run.ends.empty() ? 0 : run.ends.back();
  constexpr std::size_t shown = 8;
  const std::string which =
      after.size() > shown
          ? fmt::format("{} events", after.size())
          : fmt::format("event{} {}", after.size() == 1 ? "" : "s", fmt::join(after, ", "));
  out.notes.push_back(
      out.stop ? which + ": the run stopped before"
               : fmt::format("{}: after the end of the {} steps, which is at {}; --steps runs more",
                             which, out.steps_done, to_text(Seconds(end))));
}

/// What a run that stopped has done for nothing.
void add_loss(const job::Job& job, const FaultRun& run, FaultStudy& out) {
  const int done = static_cast<int>(run.ends.size());
  const auto every = static_cast<int>(job.train.save_every);
  const int kept = every > 0 ? done / every * every : 0;
  out.lost_steps = done - kept;
  out.lost_s = run.stop->at - (kept > 0 ? run.ends[static_cast<std::size_t>(kept) - 1] : 0.0);
}

}  // namespace

void warn_of_trace(const job::Job& job, std::vector<std::string>& warnings) {
  if (!job.faults.trace.empty())
    warnings.push_back(fmt::format("faults.trace: {} is left out: `rehearse simulate` replays it",
                                   job.faults.trace));
}

faults::Trace given_trace(const job::Job& job) {
  const std::string& path = job.faults.trace;
  try {
    if (path.ends_with(".csv")) return faults::load_bamboo(path, job.cluster.nodes());
    if (path.ends_with(".json")) return faults::load_skypilot(path, job.cluster.nodes());
    return faults::load_trace(path,
                              {.world_size = job.plan.mesh.world_size(), .cluster = &job.cluster});
  } catch (const InputError& error) {
    throw job::located(job, InputError(std::string("faults.trace: ") + error.what()));
  }
}

double loss_slowdown(const job::Job& job, const faults::Event& event) {
  const cluster::Cluster& cluster = job.cluster;
  const std::vector<Id>& devices = job.plan.placement.rank_to_device;
  Id link = 0;
  while (cluster.links()[link].name != event.link) ++link;
  const double bandwidth = cluster.links()[link].bandwidth.value;
  constexpr double most = 1e5;  // the link carries nearly nothing
  // One end of the link is near a device: look there first.
  std::vector<Id> near = devices;
  const auto is_near = [&](Id device) {
    const std::string node = fmt::format("node{}/", cluster.devices()[device].node);
    return event.link.starts_with(node) || event.link.find(">" + node) != std::string::npos;
  };
  std::stable_partition(near.begin(), near.end(), is_near);
  constexpr std::size_t looked_at = 64;
  near.resize(std::min(looked_at, near.size()));
  for (const Id from : near)
    for (const Id to : near) {
      if (from == to) continue;
      for (const cluster::Path& way : cluster.ways(from, to))
        if (std::find(way.links.begin(), way.links.end(), link) != way.links.end()) {
          const faults::Connection c =
              faults::connection_of(cluster, from, to, way.links, way.wire.value);
          const double rate = event.factor < 1 ? rate_with_loss(c, event.factor) : 0;
          return rate > 0 ? std::clamp(bandwidth / rate, 1.0, most) : most;
        }
    }
  return 1;
}

FaultStudy study_faults(const Runs& s, const faults::Trace& trace) {
  check_fidelity(s, trace);
  const auto tell = [&](const char* what) {
    if (s.options.progress != nullptr) s.options.progress->say(s.job.plan.method + ": " + what);
  };
  tell("steps without faults");
  const std::vector<FaultRun> quiet = run(s, nullptr, 0);
  tell("steps with faults");
  const std::vector<FaultRun> runs = run(s, &trace, first_struck(trace, quiet.front().ends));

  FaultStudy out{.source = s.job.faults.trace, .steps = s.options.steps.measured()};
  out.seeds = s.seeds;
  std::vector<double> costs(trace.events.size(), 0.0);
  const FaultRun* shown = nullptr;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t done = std::min(runs[i].ends.size(), quiet[i].ends.size());
    if (done > 0) {
      out.run_s += runs[i].ends[done - 1] / s.seeds;
      out.undisturbed_s += quiet[i].ends[done - 1] / s.seeds;
    }
    const std::vector<double> mine = costs_of(runs[i], quiet[i]);
    for (std::size_t e = 0; e < costs.size(); ++e) costs[e] += mine[e] / s.seeds;
    if (!runs[i].stop) continue;
    ++out.stopped_seeds;
    if (shown == nullptr) shown = &runs[i];
  }
  if (shown != nullptr) out.stop = shown->stop;
  const FaultRun& first = shown != nullptr ? *shown : runs.front();
  out.steps_done = static_cast<int>(first.ends.size());
  if (out.stop) add_loss(s.job, first, out);
  out.step_times = times_of(first.ends);
  out.undisturbed = times_of(quiet[static_cast<std::size_t>(&first - runs.data())].ends);
  const auto groups = by_step(first);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const FaultOutcome& o = first.outcomes[i];
    FaultEffect& e = out.events.emplace_back();
    e.number = i + 1;
    e.kind = name_of(trace.events[i].kind);
    e.text = to_text(trace.events[i]);
    e.nothing = o.nothing;
    e.cost_s = costs[i];
    if (!o.struck) continue;
    e.at = o.at;
    e.until = o.until;
    e.step = step_of(o, first.ends) + 1;
    if (const auto group = groups.find(e.step - 1); group != groups.end() && o.nothing.empty())
      for (const std::size_t other : group->second)
        if (other != i) e.together.push_back(other + 1);
  }
  add_notes(trace, first, out);
  return out;
}

Json to_json(const FaultStudy& f) {
  const auto maybe = [](const std::optional<double>& v) { return v ? Json(*v) : Json(); };
  Json events = Json::array(), stop;
  for (const FaultEffect& e : f.events)
    events.push_back({{"event", e.number},
                      {"kind", e.kind},
                      {"text", e.text},
                      {"struck_s", maybe(e.at)},
                      {"step", e.at ? Json(e.step) : Json()},
                      {"until_s", maybe(e.until)},
                      {"cost_s", e.cost_s},
                      {"together_with", e.together},
                      {"no_effect", e.nothing.empty() ? Json() : Json(e.nothing)}});
  if (f.stop) {
    Json waiting = Json::array();
    for (const execution::WaitingOp& w : f.stop->waiting)
      if (waiting.size() < most_waiting)
        waiting.push_back({{"rank", w.rank}, {"step", w.step + 1}, {"op", w.op}});
    stop = {{"event", f.stop->event + 1},
            {"kind", f.events[f.stop->event].kind},
            {"struck_s", f.stop->at},
            {"step", f.events[f.stop->event].step},
            {"noticed_s", f.stop->noticed},
            {"waiting", std::move(waiting)},
            {"waiting_ops", f.stop->waiting.size()},
            {"lost_steps", f.lost_steps},
            {"lost_s", f.lost_s}};
  }
  return {{"trace", f.source},
          {"steps", f.steps},
          {"steps_done", f.steps_done},
          {"stopped", f.stop.has_value()},
          {"stopped_seeds", f.stopped_seeds},
          {"stop", std::move(stop)},
          {"run_s", f.run_s},
          {"undisturbed_s", f.undisturbed_s},
          {"step_times_s", f.step_times},
          {"undisturbed_step_times_s", f.undisturbed},
          {"events", std::move(events)},
          {"notes", f.notes}};
}

std::string describe(const FaultStudy& f) {
  const auto text = [](double seconds) { return to_text(Seconds(seconds)); };
  const double longer = f.run_s - f.undisturbed_s;
  std::string out = fmt::format("\nfaults of {}: {} of {} steps take {}, ", f.source, f.steps_done,
                                f.steps, text(f.run_s));
  if (longer > 1e-9 * f.undisturbed_s)
    out += fmt::format("{} ({:.2f}%) longer than without\n", text(longer),
                       100 * longer / f.undisturbed_s);
  else
    out += "as long as without\n";
  if (f.stop) {
    out += fmt::format(
        "stopped by event {} ({}) at {} in step {}; noticed {} later; lost {} and the step under "
        "way, {} of work\n",
        f.stop->event + 1, f.events[f.stop->event].text, text(f.stop->at),
        f.events[f.stop->event].step, text(f.stop->noticed - f.stop->at),
        f.lost_steps == 1 ? "1 step" : fmt::format("{} steps", f.lost_steps), text(f.lost_s));
    if (f.stopped_seeds < f.seeds)
      out += fmt::format("{} of {} seeds stop\n", f.stopped_seeds, f.seeds);
    constexpr std::size_t lines = 8;
    for (std::size_t i = 0; i < std::min(lines, f.stop->waiting.size()); ++i)
      out += fmt::format("  rank {} waits in step {}: {}\n", f.stop->waiting[i].rank,
                         f.stop->waiting[i].step + 1, f.stop->waiting[i].op);
    if (f.stop->waiting.size() > lines)
      out += fmt::format("  and {} more\n", f.stop->waiting.size() - lines);
  }
  std::vector<std::vector<std::string>> rows{{"event", "", "strikes", "in step", "until", "costs"}};
  for (const FaultEffect& e : f.events) {
    if (!e.at || !e.nothing.empty()) continue;
    rows.push_back(
        {fmt::format("{}", e.number), e.text, text(*e.at), fmt::format("{}", e.step),
         e.until ? text(*e.until) : "for good",
         text(std::max(0.0, e.cost_s)) +
             (e.together.empty() ? "" : fmt::format(" with {}", fmt::join(e.together, ", ")))});
  }
  if (rows.size() > 1) out += "\n" + table(rows);
  for (const std::string& note : f.notes) out += "note: " + note + "\n";
  return out;
}

}  // namespace rehearse::study
