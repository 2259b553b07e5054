#include "engine/goodput/incidents.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rehearse::goodput {
namespace {

using faults::Kind;

/// The slots that an event strikes; empty: none of the job's.
std::vector<Id> slots_of(const faults::Event& e, const Slots& slots) {
  const auto at_node = [&](Id node) -> std::vector<Id> {
    const auto it = slots.of_node.find(node);
    return it == slots.of_node.end() ? std::vector<Id>() : std::vector<Id>{it->second};
  };
  if (e.rank != none)
    return e.rank < slots.of_rank.size() ? std::vector<Id>{slots.of_rank[e.rank]}
                                         : std::vector<Id>();
  if (e.node != none) return at_node(e.node);
  if (!e.device.empty()) {
    const auto it = slots.of_device.find(e.device);
    return it == slots.of_device.end() ? std::vector<Id>() : std::vector<Id>{it->second};
  }
  if (e.link.starts_with("node")) {
    // "node3/nic0>fabric", "fabric>node3/nic0": the node at one of its ends.
    try {
      return at_node(static_cast<Id>(std::stoul(e.link.substr(4))));
    } catch (const std::exception&) {
      return {};
    }
  }
  if (const auto arrow = e.link.find(">node"); arrow != std::string::npos)
    return slots_of({.link = e.link.substr(arrow + 1)}, slots);
  std::vector<Id> out;
  for (const Id node : e.nodes)
    for (const Id slot : at_node(node)) out.push_back(slot);
  return out;
}

/// When the undisturbed run begins a step, counted from 1; at most 30 years.
Ticks at_step(std::int64_t number, Ticks step) {
  return static_cast<Ticks>(std::min(
      1e18,
      static_cast<double>(std::max<std::int64_t>(1, number) - 1) * static_cast<double>(step)));
}

/// When links are up again, by name, in order.
using Ups = std::map<std::string, std::vector<Ticks>>;
Ups ups_of(const faults::Trace& trace) {
  Ups out;
  for (const faults::Event& e : trace.events)
    if (e.kind == Kind::link_up && e.at) out[e.link].push_back(ticks(*e.at));
  for (auto& [link, times] : out) std::sort(times.begin(), times.end());
  return out;
}

/// How long an event lasts; a link is down until a later link_up. 0: for good.
Ticks lasts(const faults::Event& e, const Ups& ups) {
  const auto known = ups.find(e.link);
  if (e.kind != Kind::link_down || e.duration.value > 0 || !e.at || known == ups.end())
    return ticks(e.duration);
  const Ticks at = ticks(*e.at);
  const auto up = std::upper_bound(known->second.begin(), known->second.end(), at);
  return up == known->second.end() ? 0 : *up - at;
}

/// none: it is the end of another event.
std::optional<Strike> strike_of(Kind kind) {
  switch (kind) {
    case Kind::node_dies:
    case Kind::device_dies:
      return Strike::loses;
    case Kind::rank_dies:
      return Strike::stops;
    case Kind::freezes:
    case Kind::hangs:
    case Kind::link_down:
    case Kind::partition:
      return Strike::stalls;
    case Kind::slows:
    case Kind::link_slow:
    case Kind::packet_loss:
      return Strike::slows;
    case Kind::disk_slow:
      return Strike::drags;
    case Kind::wrong_numbers:
      return Strike::corrupts;
    case Kind::node_returns:
      return Strike::returns;
    case Kind::checkpoint_truncated:
    case Kind::checkpoint_flipped:
      return Strike::spoils;
    case Kind::disk_full:
      return Strike::blocks;
    case Kind::link_up:
      return std::nullopt;
  }
  return std::nullopt;
}

/// Ends a slowdown when the ranks have other shares; returns what it is from then on, if anything.
std::optional<Incident> balance(Incident& slow, Ticks step, const Balanced& balanced) {
  const double factor = balanced(slow.slots, slow.factor);
  const auto seen = static_cast<Ticks>(
      std::min(1e18, steps_until_balanced * slow.factor * static_cast<double>(step)));
  if (factor >= slow.factor || (slow.lasts > 0 && slow.lasts <= seen)) return std::nullopt;
  Incident rest = slow;
  rest.at += seen;
  rest.factor = factor;
  if (slow.lasts > 0) rest.lasts -= seen;
  slow.lasts = seen;
  return rest;
}

}  // namespace

Ticks detection_of(const Setting& setting, const Incident& incident) {
  if (setting.detection) return *setting.detection;
  return incident.detection >= 0 ? incident.detection : setting.default_detection;
}

bool passes_unnoticed(const Setting& setting, const Incident& incident) {
  return incident.strike == Strike::stalls && incident.lasts > 0 &&
         incident.lasts < detection_of(setting, incident);
}

Incidents incidents_of(const faults::Trace& trace, const Slots& slots, Ticks step,
                       const LinkPrice& price, const Balanced& balanced) {
  Incidents out;
  const Ups ups = ups_of(trace);
  const faults::Event* last = nullptr;
  for (const faults::Event& e : trace.events) {
    const std::optional<Strike> strike = strike_of(e.kind);
    if (!strike) continue;
    std::vector<Id> struck = slots_of(e, slots);
    const bool of_link = e.kind == Kind::link_slow || e.kind == Kind::packet_loss;
    const bool of_disk = e.kind == Kind::disk_full || e.kind == Kind::disk_slow;
    if (struck.empty() && !of_link && (!of_disk || e.node != none)) {
      ++out.elsewhere;
      continue;
    }
    Incident i{.at = e.at ? ticks(*e.at) : at_step(e.step, step),
               .strike = *strike,
               .slots = std::move(struck),
               .detection = e.detection.value > 0 ? ticks(e.detection) : -1,
               .lasts = lasts(e, ups),
               .factor = of_link ? price(e) : e.factor};
    const bool same = last != nullptr && last->at && e.at && *last->at == *e.at &&
                      last->kind == e.kind && last->cause == e.cause &&
                      (i.strike == Strike::loses || i.strike == Strike::returns);
    last = &e;
    if (same && !out.all.empty()) {
      Incident& whole = out.all.back();
      whole.slots.insert(whole.slots.end(), i.slots.begin(), i.slots.end());
      whole.lasts = std::max(whole.lasts, i.lasts);
    } else {
      if (e.kind == Kind::slows && balanced)
        if (auto rest = balance(i, step, balanced)) out.all.push_back(std::move(*rest));
      out.all.push_back(std::move(i));
    }
  }
  std::stable_sort(out.all.begin(), out.all.end(),
                   [](const Incident& a, const Incident& b) { return a.at < b.at; });
  return out;
}

}  // namespace rehearse::goodput
