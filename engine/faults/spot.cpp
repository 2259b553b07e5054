#include "engine/faults/spot.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files/csv.h"
#include "engine/base/files/files.h"
#include "engine/base/files/foreign.h"
#include "engine/faults/trace_file.h"

namespace rehearse::faults {
namespace {

constexpr const char* cause = "spot";

std::string contents(const std::string& path) {
  std::string text = read_file(path);
  refuse_foreign(text, path);
  return text;
}

bool begins_with_number(const std::string& text) {
  return !text.empty() && text.front() >= '0' && text.front() <= '9';
}

Event change(Kind kind, Id node, double seconds) {
  return {.kind = kind, .node = node, .at = Seconds(seconds), .cause = cause};
}

/// Nodes that an instance stands on, by the name of the instance.
class Places {
 public:
  Places(int nodes, Trace& trace) : trace_(trace) {
    for (int n = 0; n < nodes; ++n) free_.insert(static_cast<Id>(n));
  }
  bool holds(const std::string& name) const { return at_.contains(name); }
  void add(const std::string& name, double seconds) {
    if (free_.empty()) {
      at_[name] = none;  // beyond the cluster
      return;
    }
    const Id node = *free_.begin();
    free_.erase(free_.begin());
    at_[name] = node;
    if (seconds > 0) trace_.events.push_back(change(Kind::node_returns, node, seconds));
  }
  void remove(const std::string& name, double seconds) {
    const Id node = at_.at(name);
    at_.erase(name);
    if (node == none) return;
    free_.insert(node);
    trace_.events.push_back(change(Kind::node_dies, node, seconds));
  }
  const std::set<Id>& free() const { return free_; }

 private:
  Trace& trace_;
  std::set<Id> free_ = {};
  std::map<std::string, Id> at_ = {};
};

/// Puts the deaths of nodes that are absent at time 0 before all other events.
void begin_with(const std::set<Id>& absent, Trace& trace) {
  std::vector<Event> first;
  for (const Id node : absent) first.push_back(change(Kind::node_dies, node, 0));
  trace.events.insert(trace.events.begin(), first.begin(), first.end());
}

}  // namespace

std::vector<double> spot_seconds(const Trace& trace, int nodes, Seconds duration) {
  std::vector<double> there(static_cast<std::size_t>(nodes), 0.0);
  std::vector<std::optional<double>> since(there.size(), 0.0);
  const auto leave = [&](Id node, double at) {
    if (since[node]) there[node] += at - *since[node];
    since[node].reset();
  };
  for (const Event& e : trace.events) {
    if (e.cause != cause || e.node >= there.size() || !e.at || *e.at >= duration) continue;
    if (e.kind == Kind::node_dies) leave(e.node, e.at->value);
    if (e.kind == Kind::node_returns && !since[e.node]) since[e.node] = e.at->value;
  }
  for (Id node = 0; node < there.size(); ++node) leave(node, duration.value);
  return there;
}

Trace parse_bamboo(const std::string& text, const std::string& file, int nodes) {
  const bool header = !begins_with_number(text);
  const CsvTable table = parse_csv(header ? text : "time_ms,event,node\n" + text, file);
  if (table.columns.size() != 3)
    throw InputError(
        fmt::format("{}:1: {} columns; Bamboo's format has time_ms, add or remove, node", file,
                    table.columns.size()));
  Trace trace{.model = file};
  Places places(nodes, trace);
  double last = 0;
  std::optional<std::set<Id>> absent;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::vector<std::string>& cells = table.rows[row];
    const auto wrong = [&](const std::string& why) {
      return InputError(fmt::format("{}:{}: {}", file, row + (header ? 2 : 1), why));
    };
    double ms = 0;
    const auto [end, error] =
        std::from_chars(cells[0].data(), cells[0].data() + cells[0].size(), ms);
    if (error != std::errc{} || end != cells[0].data() + cells[0].size() || !std::isfinite(ms) ||
        ms < 0 || ms >= 1e12)
      throw wrong(fmt::format("time_ms \"{}\" must be a number of milliseconds", cells[0]));
    const double seconds = ms / 1000;
    if (seconds < last) throw wrong(fmt::format("time_ms {} is before the line above", cells[0]));
    if (seconds > 0 && !absent) absent = places.free();
    last = seconds;
    const bool known = places.holds(cells[2]);
    if (cells[1] == "add") {
      if (known) throw wrong(fmt::format("node \"{}\" is added twice", cells[2]));
      places.add(cells[2], seconds);
    } else if (cells[1] == "remove") {
      if (!known) throw wrong(fmt::format("node \"{}\" is removed and was not added", cells[2]));
      places.remove(cells[2], seconds);
    } else {
      throw wrong(fmt::format("\"{}\" must be add or remove", cells[1]));
    }
  }
  if (!absent) absent = places.free();
  begin_with(*absent, trace);
  trace.duration = Seconds(last);
  return trace;
}

Trace parse_skypilot(const std::string& text, const std::string& file, int nodes) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto wrong = [&](const std::string& why) {
    return InputError(fmt::format("{}: {}", file, why));
  };
  if (json.is_discarded() || !json.is_object()) throw wrong("is not a JSON object");
  if (!json.contains("metadata") || !json["metadata"].is_object() ||
      !json["metadata"].contains("gap_seconds") || !json["metadata"]["gap_seconds"].is_number())
    throw wrong("\"metadata.gap_seconds\" must be a number of seconds");
  const double gap = json["metadata"]["gap_seconds"].get<double>();
  if (gap <= 0) throw wrong("\"metadata.gap_seconds\" must be above 0");
  if (!json.contains("data") || !json["data"].is_array() || json["data"].empty())
    throw wrong("\"data\" must be a list of numbers of instances");
  if (gap * static_cast<double>(json["data"].size()) > 1e9)
    throw wrong("\"metadata.gap_seconds\": the data would last more than 30 years");
  Trace trace{.model = file};
  std::int64_t nodes_up = 0;
  for (std::size_t i = 0; i < json["data"].size(); ++i) {
    const auto& value = json["data"][i];
    // Some of these files write 1.0 for 1.
    if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 1e6 ||
        value.get<double>() != std::floor(value.get<double>()))
      throw wrong(
          fmt::format("data[{}] = {} must be a whole number of instances", i, value.dump()));
    const std::int64_t now = std::min<std::int64_t>(nodes, std::llround(value.get<double>()));
    const double seconds = gap * static_cast<double>(i);
    if (i == 0) nodes_up = nodes;
    for (std::int64_t n = nodes_up; n > now; --n)
      trace.events.push_back(change(Kind::node_dies, static_cast<Id>(n - 1), seconds));
    for (std::int64_t n = nodes_up; n < now; ++n)
      trace.events.push_back(change(Kind::node_returns, static_cast<Id>(n), seconds));
    nodes_up = now;
  }
  trace.duration = Seconds(gap * static_cast<double>(json["data"].size()));
  return trace;
}

Trace load_bamboo(const std::string& path, int nodes) {
  return parse_bamboo(contents(path), path, nodes);
}
Trace load_skypilot(const std::string& path, int nodes) {
  return parse_skypilot(contents(path), path, nodes);
}

}  // namespace rehearse::faults
