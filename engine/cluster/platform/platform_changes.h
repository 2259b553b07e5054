// What a job changes of a platform, for questions of the form "what if the nodes had 200 Gb/s, or
// H200 in the place of H100?".
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/units.h"
#include "engine/cluster/platform/fabric.h"

namespace rehearse::cluster {

/// The links of a platform that change together. network: cables between a node and the fabric.
/// nvlink: NVLink in a node. pcie: all other links in a node. torus: those between devices of a
/// torus.
enum class LinkKind : std::uint8_t { network, nvlink, pcie, torus };
constexpr auto spellings(LinkKind) {
  return std::to_array<const char*>({"network", "nvlink", "pcie", "torus"});
}

/// What a job states of one kind of link. None: the platform's own.
struct LinkChange {
  std::optional<BytesPerSecond> bandwidth = {};  // of each link and direction, headers included
  std::optional<double> bandwidth_factor = {};   // times the platform's, in place of `bandwidth`
  std::optional<Seconds> latency = {};

  bool stated() const { return bandwidth || bandwidth_factor || latency; }
  BytesPerSecond bandwidth_of(BytesPerSecond link) const {
    return bandwidth.value_or(link * bandwidth_factor.value_or(1));
  }
  Seconds latency_of(Seconds link) const { return latency.value_or(link); }
};

/// One kind of device in the place of another.
struct Replacement {
  std::string out = {}, in = {};
};

struct PlatformChanges {
  FabricKeys fabric = {};
  std::array<LinkChange, spellings(LinkKind{}).size()> links = {};  // by LinkKind
  std::vector<Replacement> devices = {};
  std::optional<Config> section = {};  // that states them; none: nothing is changed
};

/// Throws Refused, for `key` of the section: the platform cannot have this change.
[[noreturn]] void refuse_change(const PlatformChanges& changes, const std::string& key,
                                const std::string& why);

/// What is changed, as text that follows a platform's name: "+links.network.bandwidth=3.12 GB/s".
/// Empty: nothing is.
std::string text_of(const PlatformChanges& changes);

/// Reads the keys of a job's section [cluster]: `fabric`, `links` and `replace`. Throws InputError.
PlatformChanges read_platform_changes(const Config& cluster);

}  // namespace rehearse::cluster
