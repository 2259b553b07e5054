// Reads platform files: node templates become a graph of devices (device_table.h), cables to
// "fabric" end in the switches of fabric.h, and a torus joins devices without switches (torus.h).
#include "engine/cluster/platform/platform.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "engine/base/files/data_dir.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/hints.h"
#include "engine/base/numbers/limits.h"
#include "engine/cluster/platform/device_table.h"
#include "engine/cluster/platform/fabric.h"
#include "engine/cluster/platform/platform_sections.h"
#include "engine/cluster/platform/platform_storage.h"
#include "engine/cluster/platform/platform_torus.h"

namespace rehearse::cluster {
namespace {

/// "gpu*" expands to gpu0, gpu1, ... of `names`; a pattern without * expands to itself.
std::vector<std::string> expand(const std::string& pattern, const std::vector<std::string>& names) {
  if (!pattern.ends_with('*')) return {pattern};
  const std::string stem = pattern.substr(0, pattern.size() - 1);
  std::vector<std::string> out;
  for (const std::string& name : names)
    if (name.starts_with(stem) && name.size() > stem.size() &&
        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(stem.size()), name.end(),
                    [](char c) { return c >= '0' && c <= '9'; }))
      out.push_back(name);
  return out;
}

struct Cable {
  std::string from = {}, to = {};
  BytesPerSecond bandwidth = {};
  Seconds latency = {};
  bool nvlink = false;
  int tcp_mtu = 0;
  BytesPerSecond flow_rate = {};
};
/// Cables with a flow_rate times nodes: each of them has links of its own.
constexpr std::size_t most_flows = 65536;

/// The share of a link's bandwidth that TCP's payload gets, if its largest IP packets have `mtu`
/// bytes. A packet carries headers of IP (20 bytes) and TCP (20, and 12 of time stamps). On an
/// Ethernet wire it also takes preamble (8), header (14), checksum (4) and the gap before the next
/// frame (12).
double tcp_payload_share(double mtu) {
  constexpr double in_packet = 20 + 20 + 12, around_packet = 8 + 14 + 4 + 12;
  return (mtu - in_packet) / (mtu + around_packet);
}

/// The changes of a job's links, and which of them met a link.
class ChangedLinks {
 public:
  explicit ChangedLinks(const PlatformChanges& changes) : changes_(changes) {}
  const LinkChange& of(LinkKind kind) {
    met_.at(static_cast<std::size_t>(kind)) = true;
    return changes_.links.at(static_cast<std::size_t>(kind));
  }
  /// Throws Refused when the job changes links of a kind that the cluster does not have.
  void check(const std::string& cluster) const {
    std::vector<std::string> there;
    for (std::size_t kind = 0; kind < met_.size(); ++kind)
      if (met_.at(kind)) there.emplace_back(spellings(LinkKind{}).at(kind));
    for (std::size_t kind = 0; kind < met_.size(); ++kind)
      if (changes_.links.at(kind).stated() && !met_.at(kind))
        refuse_change(
            changes_, fmt::format("links.{}", spellings(LinkKind{}).at(kind)),
            fmt::format("\"{}\" has no links of this kind; it has {}", cluster,
                        there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))));
  }

 private:
  const PlatformChanges& changes_;
  std::array<bool, std::tuple_size_v<decltype(PlatformChanges::links)>> met_ = {};
};

/// A node template. All templates are read before the first node is built.
struct NodeTemplate {
  std::int64_t count = 1;
  std::vector<std::string> devices = {};  // kind of each device
  std::vector<std::string> names = {};    // names of the devices, then of the parts
  std::vector<Cable> cables = {};
  std::set<std::string> sums = {};  // the parts that are switches which sum
  Host host = {};
};

NodeTemplate read_template(const Config& c, std::optional<std::int64_t> repeat_device,
                           ChangedLinks& changed) {
  NodeTemplate t;
  t.count = c.integer("count", 1, between(1, most_nodes));
  check_devices(c);
  t.devices = c.texts("devices");
  if (t.devices.empty()) throw c.error("devices", "must name at least one device");
  if (repeat_device) {
    if (t.devices.size() != 1) throw c.error("devices", "must be one device, which is repeated");
    t.devices.resize(static_cast<std::size_t>(*repeat_device), t.devices[0]);
  }
  const std::string stem = c.text("device_name", "gpu");
  for (std::size_t i = 0; i < t.devices.size(); ++i)
    t.names.push_back(fmt::format("{}{}", stem, i));
  for (const std::string& part : c.texts("parts")) t.names.push_back(part);
  const std::set<std::string> known(t.names.begin(), t.names.end());
  const std::set<std::string> parts(t.names.begin() + static_cast<std::ptrdiff_t>(t.devices.size()),
                                    t.names.end());
  for (const std::string& part : c.texts("sums")) {
    if (!parts.contains(part))
      throw c.error("sums", fmt::format("\"{}\" is not one of the parts{}", part,
                                        did_you_mean(part, {parts.begin(), parts.end()})));
    t.sums.insert(part);
  }
  for (const Config& link : c.sections("links")) {
    const auto ends = [&](const std::string& key) {
      const std::string pattern = link.text(key, std::nullopt);
      std::vector<std::string> found = expand(pattern, t.names);
      if (found.empty()) throw link.error(key, fmt::format("\"{}\" matches nothing", pattern));
      if (!pattern.starts_with("fabric"))
        for (const std::string& name : found)
          if (!known.contains(name))
            throw link.error(key, fmt::format("\"{}\" is neither a device, a part nor fabric{}",
                                              name, did_you_mean(name, t.names)));
      return found;
    };
    const std::vector<std::string> from = ends("from"), to = ends("to");
    const bool nvlink = link.flag("nvlink", false);
    const LinkChange& change = changed.of(to[0].starts_with("fabric") ? LinkKind::network
                                          : nvlink                    ? LinkKind::nvlink
                                                                      : LinkKind::pcie);
    BytesPerSecond bandwidth =
        change.bandwidth_of(link.bandwidth("bandwidth", std::nullopt, limits::bandwidth));
    constexpr std::int64_t least_mtu = 576;  // of IPv4
    const std::int64_t mtu = link.integer("tcp_mtu", 0, between(0, 65535));
    if (mtu > 0 && mtu < least_mtu)
      throw link.error("tcp_mtu", fmt::format("must be 0 or at least {}", least_mtu));
    BytesPerSecond flow_rate = link.bandwidth("flow_rate", BytesPerSecond{}, limits::bandwidth);
    if (mtu > 0) {
      const double payload = tcp_payload_share(static_cast<double>(mtu));
      bandwidth = bandwidth * payload, flow_rate = flow_rate * payload;
    }
    const Seconds latency =
        change.latency_of(link.seconds("latency", std::nullopt, limits::latency));
    if (from.size() != to.size() && from.size() != 1 && to.size() != 1)
      throw link.error("to", fmt::format("{} ends against {}: one end, or equally many", to.size(),
                                         from.size()));
    for (std::size_t i = 0; i < std::max(from.size(), to.size()); ++i) {
      const Cable cable{from[from.size() == 1 ? 0 : i],
                        to[to.size() == 1 ? 0 : i],
                        bandwidth,
                        latency,
                        nvlink,
                        static_cast<int>(mtu),
                        flow_rate};
      if (flow_rate.value > 0 && !cable.to.starts_with("fabric"))
        throw link.error("flow_rate", "only a link to fabric carries flows between nodes");
      if (cable.from == cable.to || cable.from.starts_with("fabric"))
        throw link.error("from", "must be a device or a part other than `to`");
      t.cables.push_back(cable);
    }
  }
  BytesPerSecond widest;
  for (const Cable& cable : t.cables)
    if (!cable.nvlink && (cable.from == t.names[0] || cable.to == t.names[0]))
      widest = std::max(widest, cable.bandwidth);
  t.host = read_host(c, widest);
  return t;
}

/// Puts kinds of device in the places of others, all at once: two kinds may change places. A node
/// with other devices has no known price.
void replace_devices(std::vector<NodeTemplate>& templates, const std::vector<DeviceKind>& table,
                     const PlatformChanges& changes, const std::string& cluster) {
  std::set<std::string> there;
  for (const NodeTemplate& t : templates) there.insert(t.devices.begin(), t.devices.end());
  std::map<std::string, std::string> in_place_of;
  for (const Replacement& change : changes.devices) {
    if (!there.contains(change.out))
      refuse_change(changes, "replace",
                    fmt::format("\"{}\" has no device \"{}\"; it has {}", cluster, change.out,
                                fmt::join(there, ", ")));
    if (find_kind(table, change.in) == nullptr)
      refuse_change(changes, "replace", unknown_kind(table, change.in));
    if (!in_place_of.emplace(change.out, change.in).second)
      refuse_change(changes, "replace",
                    fmt::format("\"{}\" stands there twice; leave one out", change.out));
  }
  for (NodeTemplate& t : templates)
    for (std::string& device : t.devices)
      if (const auto change = in_place_of.find(device); change != in_place_of.end()) {
        device = change->second;
        t.host.price = {};
      }
}

/// `limited`: gets the links that state a flow_rate.
void build_node(const NodeTemplate& t, Id node, const std::map<std::string, Id>& kinds,
                Fabric& fabric, Cluster& cluster,
                std::vector<std::pair<Id, BytesPerSecond>>& limited) {
  std::map<std::string, Id> vertex;
  for (std::size_t i = 0; i < t.names.size(); ++i) {
    const std::string name = fmt::format("node{}/{}", node, t.names[i]);
    vertex[t.names[i]] =
        i < t.devices.size()
            ? cluster.vertex_of(cluster.add_device(name, kinds.at(t.devices[i]), node))
            : cluster.add_vertex(name, node, t.sums.contains(t.names[i]));
  }
  for (const Cable& cable : t.cables) {
    const Id link = cluster.connect(
        vertex.at(cable.from),
        cable.to.starts_with("fabric") ? fabric.attach(cable.to, node, cable.bandwidth)
                                       : vertex.at(cable.to),
        {}, cable.bandwidth, cable.latency, cable.nvlink, cable.tcp_mtu);
    if (cable.flow_rate.value > 0) limited.emplace_back(link, cable.flow_rate);
  }
  cluster.set_host(node, t.host);
}

Bytes host_memory() {
  return Bytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
               static_cast<double>(sysconf(_SC_PAGE_SIZE)));
}
std::int64_t hardware_cores() { return std::max(1U, std::thread::hardware_concurrency()); }

/// What follows the colon of a cluster's name: a number, or the sizes of a torus.
struct Scale {
  std::optional<std::int64_t> number = {};
  std::vector<int> sizes = {};
};

Scale scale_of(const std::string& text, const std::string& whole) {
  const bool sizes = text.find('x') != std::string::npos && text[0] >= '0' && text[0] <= '9';
  if (sizes) return {.sizes = torus_sizes(text, whole)};
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > most_nodes)
    throw InputError(fmt::format(
        "cluster \"{}\": \"{}\" is neither a number from 1 to {}, as in \"dgx-a100:16\", "
        "nor the sizes of a torus, as in \"tpu-v4:4x4x8\"",
        whole, text, most_nodes));
  return {.number = value};
}

/// How many nodes of the template the torus has.
std::int64_t torus_nodes(const Config& file, const TorusShape& torus, std::size_t templates,
                         const NodeTemplate& node) {
  const auto devices = static_cast<int>(node.devices.size());
  if (templates != 1) throw file.error("torus", "needs exactly one [[nodes]]");
  if (file.sections("nodes")[0].has("count"))
    throw file.sections("nodes")[0].error("count", "is given by torus.sizes");
  if (torus.devices() % devices != 0)
    throw file.error("torus", fmt::format("{} devices do not fill nodes of {}: the product of its "
                                          "sizes must be a multiple of {}",
                                          torus.devices(), devices, devices));
  return torus.devices() / devices;
}

Cluster read_cluster(const Config& file, const std::string& name, const Scale& given,
                     const PlatformChanges& changes) {
  check_kind(file, FileKind::platform);
  check_sections(file);
  std::optional<std::int64_t> scale = given.number;
  Cluster cluster;
  cluster.rename(name + text_of(changes));
  file.text("summary", std::nullopt);
  file.text("source", "");
  const std::string scales = file.text("scale", "fixed", {"fixed", "nodes", "ranks", "torus"});
  const bool shares = file.flag("shared_cores", false);
  const std::optional<TorusShape> torus = read_torus(file, given.sizes);
  if ((scales == "torus") > torus.has_value() || (torus && scales != "fixed" && scales != "torus"))
    throw file.error("scale", "torus needs a [torus], and a torus has no other scale but fixed");
  if (scale && scales == "fixed")
    throw InputError(
        fmt::format("cluster \"{}\": it has a size of its own; leave out \":{}\"", name, *scale));
  if (!given.sizes.empty() && scales != "torus")
    throw InputError(fmt::format("cluster \"{}\": it is no torus; leave out \"{}\"", name,
                                 name.substr(name.rfind(':'))));
  if (scale && torus)
    throw InputError(fmt::format("cluster \"{}\": its size is that of a torus, as in \"tpu-v4:{}\"",
                                 name, fmt::join(torus->sizes, "x")));
  if ((scales == "nodes" || scales == "ranks") && !scale)
    scale = scales == "ranks" ? hardware_cores() : 1;

  ChangedLinks changed(changes);
  std::vector<NodeTemplate> templates;
  for (const Config& c : file.sections("nodes")) {
    templates.push_back(
        read_template(c, scales == "ranks" ? scale : std::optional<std::int64_t>(), changed));
    if (scales == "nodes" && c.has("count"))
      throw c.error("count", "is given by the cluster's name, as in \"dgx-a100:16\"");
    if (scales == "nodes") templates.back().count = *scale;
    if (shares) templates.back().host.memory = host_memory();
  }
  if (templates.empty()) throw file.error("nodes", "must have at least one [[nodes]]");
  if (torus) templates[0].count = torus_nodes(file, *torus, templates.size(), templates[0]);
  if (scales != "fixed" && templates.size() != 1)
    throw file.error("scale", "only a cluster of one [[nodes]] can be scaled");

  std::vector<DeviceKind> table = read_devices(file);
  for (DeviceKind& kind : device_table()) table.push_back(std::move(kind));
  replace_devices(templates, table, changes, name);
  std::map<std::string, Id> kinds;
  for (std::size_t i = 0; i < templates.size(); ++i)
    for (const std::string& device : templates[i].devices) {
      if (kinds.contains(device)) continue;
      const DeviceKind* const known = find_kind(table, device);
      if (known == nullptr)
        throw file.sections("nodes")[i].error("devices", unknown_kind(table, device));
      DeviceKind kind = *known;
      // The ranks of one host share its memory equally.
      if (shares) kind.memory = host_memory() / static_cast<double>(templates[i].devices.size());
      kinds[device] = cluster.add_kind(std::move(kind));
    }
  const Config switches = file.section("fabric");
  Fabric fabric(with(read_fabric(switches), changes.fabric), switches, cluster);
  cluster.share_disk(read_shared_disk(file));
  file.finish();

  Id node = 0;
  std::vector<std::pair<Id, BytesPerSecond>> limited;
  for (const NodeTemplate& t : templates)
    for (std::int64_t i = 0; i < t.count; ++i)
      build_node(t, node++, kinds, fabric, cluster, limited);
  fabric.finish();
  if (torus) {
    const LinkChange& change = changed.of(LinkKind::torus);
    cluster.lay_torus(torus->sizes, change.bandwidth_of(torus->bandwidth),
                      change.latency_of(torus->latency));
  }
  changed.check(name);
  if (limited.size() * node > most_flows)
    throw file.sections("nodes")[0].error(
        "links", fmt::format("flow_rate: {} cables x {} nodes are more than {} flows",
                             limited.size(), node, most_flows));
  for (const auto& [link, rate] : limited) cluster.limit_flows(link, rate);
  if (shares) cluster.share_cores(static_cast<int>(hardware_cores()));
  return cluster;
}

}  // namespace

Cluster load_cluster(const std::string& name_or_path) { return load_cluster(name_or_path, {}); }

Cluster load_cluster(const std::string& name_or_path, const PlatformChanges& changes) {
  std::string name = name_or_path;
  Scale scale;
  if (const auto colon = name.rfind(':'); colon != std::string::npos) {
    scale = scale_of(name.substr(colon + 1), name_or_path);
    name.resize(colon);
  }
  return read_cluster(Config::load(find_data("platforms", name, "cluster", "devices").string()),
                      name_or_path, scale, changes);
}

std::vector<Config::Key> platform_keys() {
  const Config file = Config::parse(R"(
    summary = "any"
    [[nodes]]
    devices = ["any"]
    links = [{ from = "gpu0", to = "fabric", bandwidth = "1GB/s", latency = "1us" }]
    disk = { read = "1GB/s", write = "1GB/s" }
    [torus]
    sizes = [2]
    bandwidth = "1GB/s"
    latency = "1us"
    [shared_disk]
    read = "1GB/s"
    write = "1GB/s"
    [[device]]
    name = "any"
    memory = "1GB"
    f32 = "1TFLOP/s"
    memory_bandwidth = "1GB/s"
    source = "any"
  )",
                                    "keys");
  read_cluster(file, "keys", {}, {});
  return file.keys();
}

std::vector<std::string> known_clusters() {
  std::vector<std::string> names = data_names("platforms");
  std::erase(names, "devices");
  return names;
}

}  // namespace rehearse::cluster
