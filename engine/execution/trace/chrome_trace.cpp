#include "engine/execution/trace/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/execution/trace/trace_labels.h"
#include "engine/link/rendezvous.h"
#include "engine/program/rounds.h"

namespace rehearse::execution {

const char* kind_of(const program::Work& work) {
  return std::visit(
      program::overloaded{
          [](const program::Compute&) { return "compute"; },
          [](const program::Kernel&) { return "kernel"; },
          [](const program::Update&) { return "update"; },
          [](const program::Collective&) { return "collective"; },
          [](const program::Send&) { return "send"; }, [](const program::Recv&) { return "recv"; },
          [](const program::Put&) { return "put"; }, [](const program::Take&) { return "take"; },
          [](const program::Copy&) { return "copy"; }, [](const program::Save&) { return "save"; },
          [](const program::Pause&) { return "pause"; },
          [](const program::Issue&) { return "issue"; }},
      work);
}
bool communicates(const program::Work& work) { return program::channel_of(work) != none; }

namespace {

/// One op that ran. Times are in nanoseconds, the resolution of the numbers in the file.
struct Slice {
  Id rank = 0, role = 0, op = 0, lane = 0;
  int step = 0;
  std::int64_t start = 0, end = 0;
};

std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

}  // namespace

struct ChromeTrace::Impl {
  std::string path;
  const link::OrderedProgram* linked;
  const model::ModelSpec& model;
  TraceSelection selection;
  std::FILE* file = nullptr;
  bool first = true;
  std::set<Id> ranks = {};
  std::vector<Slice> slices = {};  // of this section
  std::optional<std::int64_t> origin = {};
  std::int64_t arrows = 0;
  std::int64_t last = 0;  // when the last op so far ended
  Id marks = 0;
  Id first_lane = 0, lanes = 0;  // first_lane: of this section; lanes: of all sections so far

  // The stream keeps its error state, which close() reports.
  void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), file); }
  bool wants(Id rank) const { return ranks.empty() || ranks.count(rank); }
  void line(const std::string& text) {
    write((first ? "\n" : ",\n") + text);
    first = false;
  }
  [[noreturn]] void fail(const char* what) const {
    throw BackendError(fmt::format("{}: {}", path, what));
  }

  void describe(const char* what, Id rank, Id lane, const std::string& args) {
    line(fmt::format(
        "{{\"ph\": \"M\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"args\": {{{}}}}}", what,
        rank, lane, args));
  }
  void describe_lanes(const std::string& label, bool processes);
  /// `phase`: s begins an arrow, t continues it, f ends it. The viewer attaches it to the slice
  /// that contains its time.
  void arrow_at(char phase, const char* what, std::int64_t id, const Slice& slice) {
    line(fmt::format(
        "{{\"ph\": \"{}\",{} \"name\": \"{}\", \"cat\": \"{}\", \"id\": {}, \"pid\": {}, "
        "\"tid\": {}, \"ts\": {}}}",
        phase, phase == 's' ? "" : " \"bp\": \"e\",", what, what, id, slice.rank,
        first_lane + slice.lane, microseconds(slice.start - *origin)));
  }
  void write_slices(TraceLabels& labels);
  void write_rendezvous();
  void write_waits();
};

void ChromeTrace::Impl::describe_lanes(const std::string& label, bool processes) {
  for (const program::Role& role : linked->program.roles) {
    lanes = std::max(lanes, first_lane + static_cast<Id>(role.lanes.size()));
    for (const Id rank : role.ranks) {
      if (!wants(rank)) continue;
      const auto name = [](const std::string& text) {
        return fmt::format("\"name\": {}", nlohmann::json(text).dump());
      };
      const auto place = [](Id at) { return fmt::format("\"sort_index\": {}", at); };
      if (processes) {
        describe("process_name", rank, 0, name(fmt::format("rank {} ({})", rank, role.name)));
        describe("process_sort_index", rank, 0, place(rank));
      }
      for (Id lane = 0; lane < role.lanes.size(); ++lane) {
        const std::string& own = role.lanes[lane].name;
        describe("thread_name", rank, first_lane + lane,
                 name(label.empty() ? own : fmt::format("{} {}", label, own)));
        describe("thread_sort_index", rank, first_lane + lane, place(first_lane + lane));
      }
    }
  }
}

void ChromeTrace::Impl::write_slices(TraceLabels& labels) {
  for (const Slice& s : slices) {
    const program::Work& work = linked->program.roles[s.role].ops[s.op].work;
    // A viewer finds an arrow's slice only when the slice has a duration.
    const std::int64_t length = std::max<std::int64_t>(s.end - s.start, 1);
    line(
        fmt::format("{{\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                    "\"ts\": {}, \"dur\": {}, \"args\": {{\"step\": {},{} {}}}}}",
                    labels.name(s.role, s.op), kind_of(work), s.rank, first_lane + s.lane,
                    microseconds(s.start - *origin), microseconds(length), s.step,
                    selection.critical.contains({s.rank, s.op}) ? " \"critical\": true," : "",
                    labels.args(s.role, s.op, s.rank)));
  }
}

/// Arrows between the ops of a rendezvous: from a send to its receive, through the members of a
/// collective.
void ChromeTrace::Impl::write_rendezvous() {
  link::RanksThatMeet meet(*linked);
  std::map<std::tuple<Id, Id, int>, std::vector<const Slice*>> rendezvous;  // event, ranks, step
  for (const Slice& s : slices)
    if (const std::vector<Id> ranks = meet.of(linked->program.roles[s.role].ops[s.op].work, s.rank);
        ranks.size() > 1)
      rendezvous[{linked->event_of[s.role][s.op], ranks.front(), s.step}].push_back(&s);
  for (auto& [where, members] : rendezvous) {
    if (members.size() < 2) continue;  // the other members are not selected
    std::ranges::stable_sort(members, {}, [&](const Slice* s) {
      const program::Work& work = linked->program.roles[s->role].ops[s->op].work;
      return std::pair(std::holds_alternative<program::Recv>(work), s->start);
    });
    const std::int64_t id = arrows++;
    for (const Slice* s : members)
      arrow_at(s == members.front() ? 's' : s == members.back() ? 'f' : 't', "rendezvous", id, *s);
  }
}

/// Arrows from an op to the ops on other lanes of the same rank that wait for it.
void ChromeTrace::Impl::write_waits() {
  std::map<std::tuple<Id, Id, int>, const Slice*> ran;  // rank, op, step
  for (const Slice& s : slices) ran[{s.rank, s.op, s.step}] = &s;
  for (const Slice& s : slices)
    for (const program::After& after : linked->program.roles[s.role].ops[s.op].after) {
      const auto before = ran.find({s.rank, after.op, s.step - static_cast<int>(after.lag)});
      if (after.throttle || before == ran.end() || before->second->lane == s.lane) continue;
      const std::int64_t id = arrows++;
      arrow_at('s', "after", id, *before->second);
      arrow_at('f', "after", id, s);
    }
}

ChromeTrace::ChromeTrace(const std::string& path, const link::OrderedProgram& linked,
                         const model::ModelSpec& model, TraceSelection selection)
    : impl_(std::make_unique<Impl>(Impl{path, &linked, model, std::move(selection)})) {
  Impl& t = *impl_;
  t.ranks.insert(t.selection.ranks.begin(), t.selection.ranks.end());
  t.file = std::fopen(path.c_str(), "w");
  if (!t.file) t.fail("cannot be written");
  t.write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  t.describe_lanes("", true);
}

void ChromeTrace::section(const link::OrderedProgram& linked, const std::string& label) {
  flush();
  Impl& t = *impl_;
  t.linked = &linked;
  t.first_lane = t.lanes;
  t.describe_lanes(label, false);
}

ChromeTrace::~ChromeTrace() {
  if (impl_ && impl_->file) std::fclose(impl_->file);
}

void ChromeTrace::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                         std::span<const double> ends) {
  Impl& t = *impl_;
  const TraceSelection& s = t.selection;
  if (step < s.first_step || (s.last_step >= 0 && step > s.last_step)) return;
  const program::Role& who = t.linked->program.roles[role];
  if (!who.ops[op].when.due(step)) return;
  const bool may_stop = who.round.steps > 0 && program::stops(who.ops[op]);
  for (std::size_t i = 0; i < starts.size(); ++i)
    if (const Id rank = who.ranks[first_place + i];
        t.wants(rank) && (!may_stop || starts[i] != ends[i]))
      t.slices.push_back({.rank = rank,
                          .role = role,
                          .op = op,
                          .lane = who.ops[op].lane,
                          .step = step,
                          .start = std::llround(starts[i] * 1e9),
                          .end = std::llround(ends[i] * 1e9)});
}

void ChromeTrace::flush() {
  Impl& t = *impl_;
  if (t.slices.empty()) return;
  std::ranges::stable_sort(
      t.slices, {}, [](const Slice& s) { return std::tuple(s.rank, s.lane, s.start, s.end); });
  for (const Slice& s : t.slices) t.last = std::max(t.last, s.end);
  if (!t.origin) t.origin = std::ranges::min(t.slices, {}, &Slice::start).start;
  TraceLabels labels(*t.linked, t.model);
  t.write_slices(labels);
  t.write_rendezvous();
  t.write_waits();
  t.slices.clear();
}

void ChromeTrace::mark(const std::string& name, double start, double end) {
  Impl& t = *impl_;
  flush();
  if (!t.origin) return;
  const double until = std::min(end * 1e9, static_cast<double>(t.last));
  const std::int64_t from = std::max<std::int64_t>(std::llround(start * 1e9), *t.origin);
  if (start * 1e9 > static_cast<double>(t.last) || until < static_cast<double>(*t.origin)) return;
  // A process of its own, with a track for each mark: marks may overlap.
  const auto pid = static_cast<Id>(t.linked->program.world_size);
  const std::string quoted = nlohmann::json(name).dump();
  if (t.marks == 0) t.describe("process_name", pid, 0, "\"name\": \"faults\"");
  const std::int64_t length = std::max<std::int64_t>(std::llround(until) - from, 1);
  t.line(fmt::format(
      "{{\"ph\": \"i\", \"s\": \"g\", \"name\": {}, \"cat\": \"fault\", \"pid\": {}, \"tid\": {}, "
      "\"ts\": {}}}",
      quoted, pid, t.marks, microseconds(from - *t.origin)));
  t.line(fmt::format(
      "{{\"ph\": \"X\", \"name\": {}, \"cat\": \"fault\", \"pid\": {}, \"tid\": {}, \"ts\": {}, "
      "\"dur\": {}, \"args\": {{}}}}",
      quoted, pid, t.marks, microseconds(from - *t.origin), microseconds(length)));
  ++t.marks;
}

void ChromeTrace::close() {
  Impl& t = *impl_;
  if (!t.file) return;
  flush();
  t.write("\n]}\n");
  const bool failed = std::ferror(t.file) != 0;
  const bool closed = std::fclose(std::exchange(t.file, nullptr)) == 0;
  if (failed || !closed) t.fail("could not be written to the end (disk full?)");
}

}  // namespace rehearse::execution
