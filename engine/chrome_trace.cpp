#include "engine/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/errors.h"

namespace rehearse {

const char* kind_of(const Work& work) {
  return std::visit(
      overloaded{[](const Compute&) { return "compute"; }, [](const Kernel&) { return "kernel"; },
                 [](const Update&) { return "update"; },
                 [](const Collective&) { return "collective"; }, [](const Send&) { return "send"; },
                 [](const Recv&) { return "recv"; }, [](const Put&) { return "put"; },
                 [](const Take&) { return "take"; }},
      work);
}
bool communicates(const Work& work) {
  return std::visit(
      overloaded{[](const Compute&) { return false; }, [](const Kernel&) { return false; },
                 [](const Update&) { return false; }, [](const auto&) { return true; }},
      work);
}

struct ChromeTrace::Impl {
  std::string path;
  const LinkedProgram* linked;
  TraceSelection selection;
  std::FILE* file = nullptr;
  bool first = true;
  std::set<Id> ranks = {};
  std::vector<std::vector<std::string>> names = {};  // [role][op], JSON text, made when first used
  Id first_lane = 0, lanes = 0;                      // of this section; of all so far

  // Errors stay in the stream and are reported when it is closed.
  void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), file); }
  bool wants(Id rank) const { return ranks.empty() || ranks.count(rank); }
  void line(const std::string& text) {
    write((first ? "\n" : ",\n") + text);
    first = false;
  }
  [[noreturn]] void fail(const char* what) const {
    throw BackendError(fmt::format("{}: {}", path, what));
  }
};

ChromeTrace::ChromeTrace(const std::string& path, const LinkedProgram& linked,
                         TraceSelection selection)
    : impl_(std::make_unique<Impl>(Impl{path, &linked, std::move(selection)})) {
  Impl& t = *impl_;
  t.ranks.insert(t.selection.ranks.begin(), t.selection.ranks.end());
  t.file = std::fopen(path.c_str(), "w");
  if (!t.file) t.fail("cannot be written");
  t.write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  section(linked, "");
}

void ChromeTrace::section(const LinkedProgram& linked, const std::string& label) {
  Impl& t = *impl_;
  const bool first = t.lanes == 0;
  t.linked = &linked;
  t.names.clear();
  t.first_lane = t.lanes;
  for (const Role& role : linked.program.roles) {
    t.names.emplace_back(role.ops.size());
    t.lanes = std::max(t.lanes, t.first_lane + static_cast<Id>(role.lanes.size()));
    for (Id rank : role.ranks) {
      if (!t.wants(rank)) continue;
      auto name = [&](const char* what, Id lane, const std::string& text) {
        t.line(
            fmt::format("{{\"ph\": \"M\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"args\": "
                        "{{\"name\": {}}}}}",
                        what, rank, lane, nlohmann::json(text).dump()));
      };
      if (first) name("process_name", 0, fmt::format("rank {} ({})", rank, role.name));
      for (Id lane = 0; lane < role.lanes.size(); ++lane)
        name("thread_name", t.first_lane + lane,
             label.empty() ? role.lanes[lane].name : label + " " + role.lanes[lane].name);
    }
  }
}

ChromeTrace::~ChromeTrace() {
  if (impl_ && impl_->file) std::fclose(impl_->file);
}

void ChromeTrace::record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                         std::span<const double> ends) {
  Impl& t = *impl_;
  const TraceSelection& s = t.selection;
  if (step < s.first_step || (s.last_step >= 0 && step > s.last_step)) return;
  const Role& who = t.linked->program.roles[role];
  const Op& what = who.ops[op];
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Id rank = who.ranks[first_place + i];
    if (!t.wants(rank)) continue;
    std::string& name = t.names[role][op];
    if (name.empty()) name = nlohmann::json(to_text(t.linked->program, who, op)).dump();
    t.line(
        fmt::format("{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                    "\"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": {{\"step\": {}, \"op\": {}}}}}",
                    name, kind_of(what.work), rank, t.first_lane + what.lane, starts[i] * 1e6,
                    (ends[i] - starts[i]) * 1e6, step, op));
  }
}

void ChromeTrace::close() {
  Impl& t = *impl_;
  if (!t.file) return;
  t.write("\n]}\n");
  const bool failed = std::ferror(t.file) != 0;
  const bool closed = std::fclose(std::exchange(t.file, nullptr)) == 0;
  if (failed || !closed) t.fail("could not be written to the end (disk full?)");
}

}  // namespace rehearse
