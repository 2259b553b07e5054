#include "engine/cluster/platform/platform_changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/base/numbers/limits.h"
#include "engine/base/refusal.h"

namespace rehearse::cluster {
namespace {

LinkChange read_link(const Config& c) {
  LinkChange change{.bandwidth = c.maybe_bandwidth("bandwidth", limits::bandwidth),
                    .bandwidth_factor = c.maybe_number("bandwidth_factor", limits::factor),
                    .latency = c.maybe_seconds("latency", limits::latency)};
  if (change.bandwidth && change.bandwidth_factor)
    throw c.error("bandwidth_factor",
                  "does not combine with bandwidth, which replaces the platform's; leave out one "
                  "of the two");
  return change;
}

std::vector<Replacement> read_replacements(const Config& c) {
  std::vector<Replacement> out;
  for (const std::string& text : c.texts("replace")) {
    const auto colon = text.find(": ");
    if (colon == text.npos || colon == 0 || colon + 2 == text.size())
      throw c.error("replace", fmt::format("\"{}\": must be a kind of device and the one in its "
                                           "place, as in \"H100: H200\"",
                                           text));
    out.push_back({.out = text.substr(0, colon), .in = text.substr(colon + 2)});
  }
  return out;
}

}  // namespace

void refuse_change(const PlatformChanges& changes, const std::string& key, const std::string& why) {
  throw Refused({"cluster." + key, changes.section.value().error(key, why).what()});
}

std::string text_of(const PlatformChanges& changes) {
  std::vector<std::string> out;
  for (std::size_t kind = 0; kind < changes.links.size(); ++kind) {
    const LinkChange& link = changes.links.at(kind);
    const std::string key = fmt::format("links.{}", spellings(LinkKind{}).at(kind));
    if (link.bandwidth)
      out.push_back(fmt::format("{}.bandwidth={}", key, to_text(*link.bandwidth)));
    if (link.bandwidth_factor)
      out.push_back(fmt::format("{}.bandwidth_factor={}", key, *link.bandwidth_factor));
    if (link.latency) out.push_back(fmt::format("{}.latency={}", key, to_text(*link.latency)));
  }
  if (changes.section)
    for (const std::string& key : changes.section->section("fabric").names())
      out.push_back("fabric." + key);
  for (const Replacement& change : changes.devices)
    out.push_back(fmt::format("replace={}: {}", change.out, change.in));
  return out.empty() ? "" : fmt::format("+{}", fmt::join(out, ","));
}

PlatformChanges read_platform_changes(const Config& cluster) {
  PlatformChanges changes{.fabric = read_fabric(cluster.section("fabric")),
                          .devices = read_replacements(cluster),
                          .section = cluster};
  changes.fabric.of_job = cluster.section("fabric").names();
  const Config links = cluster.section("links");
  for (std::size_t kind = 0; kind < changes.links.size(); ++kind)
    changes.links.at(kind) = read_link(links.section(spellings(LinkKind{}).at(kind)));
  return changes;
}

}  // namespace rehearse::cluster
