// Builds a cluster's graph, answers queries about it, and computes the hash.
#include "engine/cluster/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "engine/base/fnv.h"
#include "engine/cluster/routes/paths.h"
#include "engine/cluster/routes/tables.h"

namespace rehearse::cluster {

struct Cluster::Impl {
  Tables data = {};
  Paths paths{data};  // a copy of the cluster starts without known paths
};

Cluster::Cluster() : impl_(std::make_unique<Impl>()) {}
Cluster::Cluster(const Cluster& other) : Cluster() { impl_->data = other.impl_->data; }
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(const Cluster& other) {
  if (this != &other) *this = Cluster(other);
  return *this;
}
Cluster& Cluster::operator=(Cluster&&) noexcept = default;
Cluster::~Cluster() = default;

Id Cluster::add_kind(DeviceKind kind) {
  impl_->data.kinds.push_back(std::move(kind));
  return static_cast<Id>(impl_->data.kinds.size() - 1);
}

Id Cluster::add_device(std::string name, Id kind, Id node) {
  Tables& data = impl_->data;
  assert(kind < data.kinds.size() && node != none);
  data.vertex_of.push_back(add_vertex(name, node));
  data.vertices.back().device = true;
  data.devices.push_back({std::move(name), kind, node});
  data.nodes = std::max(data.nodes, static_cast<int>(node) + 1);
  return static_cast<Id>(data.devices.size() - 1);
}

Id Cluster::add_vertex(std::string name, Id node, bool sums) {
  impl_->paths.changed();
  impl_->data.vertices.push_back({.name = std::move(name), .node = node, .sums = sums});
  return static_cast<Id>(impl_->data.vertices.size() - 1);
}

void Cluster::let_sum(Id vertex, BytesPerSecond bandwidth, Seconds latency) {
  Tables& data = impl_->data;
  assert(vertex < data.vertices.size() && data.vertices[vertex].node == none);
  const Id below = add_vertex(data.vertices[vertex].name + "/sums");
  data.arithmetic[vertex] = connect(vertex, below, {}, bandwidth, latency);
}

void Cluster::lay_torus(std::vector<int> sizes, BytesPerSecond bandwidth, Seconds latency) {
  Torus torus = joined(std::move(sizes), impl_->data.vertex_of,
                       [&](Id a, Id b) { return connect(a, b, {}, bandwidth, latency); });
  impl_->paths.changed();
  impl_->data.torus = std::move(torus);
}
std::span<const int> Cluster::torus() const { return impl_->data.torus.sizes; }

Id Cluster::vertex_of(Id device) const { return impl_->data.vertex_of[device]; }

Id Cluster::connect(Id vertex_a, Id vertex_b, std::string name, BytesPerSecond bandwidth,
                    Seconds latency, bool nvlink, int tcp_mtu) {
  Tables& data = impl_->data;
  assert(vertex_a < data.vertices.size() && vertex_b < data.vertices.size());
  assert(vertex_a != vertex_b && bandwidth.value > 0 && latency.value >= 0 && data.flows.empty());
  impl_->paths.changed();
  const std::string &a = data.vertices[vertex_a].name, &b = data.vertices[vertex_b].name;
  std::string back = name.empty() ? b + ">" + a : name + ".back";
  data.ends.emplace_back(vertex_a, vertex_b);
  data.links.push_back(
      {name.empty() ? a + ">" + b : std::move(name), bandwidth, latency, nvlink, tcp_mtu, {}});
  data.links.push_back({std::move(back), bandwidth, latency, nvlink, tcp_mtu, {}});
  for (const auto& [one, other] : {std::pair(vertex_a, vertex_b), std::pair(vertex_b, vertex_a)})
    if (data.vertices[one].device && data.vertices[other].sums &&
        data.vertices[one].node == data.vertices[other].node)
      data.on_summing_switch.insert(one);
  if (data.vertices[vertex_a].device && data.vertices[vertex_b].device)
    for (const auto& ends : {std::pair(vertex_a, vertex_b), std::pair(vertex_b, vertex_a)})
      data.cables[ends] += bandwidth.value;
  return static_cast<Id>(data.links.size() - 2);
}

void Cluster::limit_flows(Id link, BytesPerSecond rate) {
  impl_->paths.changed();
  Tables& data = impl_->data;
  const Id cable = link / 2;
  assert(data.vertices[data.ends[cable].first].node != none && rate.value > 0);
  data.flows[cable] = static_cast<Id>(data.links.size());
  for (const Id direction : {2 * cable, 2 * cable + 1}) data.links[direction].flow_rate = rate;
  for (int node = 0; node < data.nodes; ++node)
    for (const Id direction : {2 * cable, 2 * cable + 1})
      data.links.push_back({.name = fmt::format("{} {} node{}", data.links[direction].name,
                                                direction == 2 * cable ? "to" : "from", node),
                            .bandwidth = rate});
}

const std::string& Cluster::name() const { return impl_->data.name; }
void Cluster::rename(std::string name) { impl_->data.name = std::move(name); }
std::span<const Device> Cluster::devices() const { return impl_->data.devices; }
std::span<const DeviceKind> Cluster::kinds() const { return impl_->data.kinds; }
std::span<const Link> Cluster::links() const { return impl_->data.links; }
const DeviceKind& Cluster::kind_of(Id device) const {
  return impl_->data.kinds[impl_->data.devices[device].kind];
}
int Cluster::nodes() const { return impl_->data.nodes; }
const Host& Cluster::host_of(Id node) const {
  static const Host unknown;
  return node < impl_->data.hosts.size() ? impl_->data.hosts[node] : unknown;
}
void Cluster::set_host(Id node, const Host& host) {
  if (node >= impl_->data.hosts.size()) impl_->data.hosts.resize(node + std::size_t{1});
  impl_->data.hosts[node] = host;
}
const Disk& Cluster::shared_disk() const { return impl_->data.shared_disk; }
void Cluster::share_disk(const Disk& disk) { impl_->data.shared_disk = disk; }
std::vector<BytesPerSecond> Cluster::networks() const {
  const Tables& data = impl_->data;
  std::vector<BytesPerSecond> out(static_cast<std::size_t>(data.nodes));
  for (std::size_t i = 0; i < 2 * data.ends.size(); ++i) {
    auto [from, to] = data.ends[i / 2];
    if (i % 2 == 1) std::swap(from, to);
    const Id node = data.vertices[from].node;
    if (data.vertices[from].device && data.vertices[to].device) continue;  // a torus's cable
    if (node != none && data.vertices[to].node != node) out[node] += data.links[i].bandwidth;
  }
  return out;
}

std::span<const Id> Cluster::path(Id a, Id b) const {
  assert(a < impl_->data.devices.size() && b < impl_->data.devices.size());
  if (a == b) return {};
  return impl_->paths.cheapest(a, b);
}

SumTree Cluster::sum_tree(std::span<const Id> devices) const {
  assert(devices.size() > 1);
  return impl_->paths.sum_tree(devices);
}

std::span<const Path> Cluster::ways(Id a, Id b) const {
  assert(a < impl_->data.devices.size() && b < impl_->data.devices.size());
  if (a == b) return {};
  return impl_->paths.ways(a, b);
}

const Path& Cluster::way(Id a, Id b, double bytes) const {
  static const Path nothing;
  return a == b ? nothing : fastest(ways(a, b), bytes);
}

std::span<const Id> Cluster::path(Id a, Id b, double bytes) const { return way(a, b, bytes).links; }

const Path& fastest(std::span<const Path> ways, double bytes) {
  assert(!ways.empty());
  const auto seconds = [bytes](const Path& w) {
    return w.latency.value + bytes / w.bandwidth.value;
  };
  const Path* best = ways.data();
  for (const Path& way : ways.subspan(1))
    if (seconds(way) < seconds(*best)) best = &way;
  return *best;
}

Seconds Cluster::latency(Id a, Id b) const {
  Seconds sum;
  impl_->paths.each_link(a, b, [&](const Link& link) { sum += link.latency; });
  return sum;
}

BytesPerSecond Cluster::bandwidth(Id a, Id b) const {
  BytesPerSecond least(std::numeric_limits<double>::infinity());
  impl_->paths.each_link(a, b, [&](const Link& link) { least = std::min(least, link.bandwidth); });
  return least;
}

BytesPerSecond Cluster::cable(Id a, Id b) const {
  const auto it = impl_->data.cables.find({impl_->data.vertex_of[a], impl_->data.vertex_of[b]});
  return BytesPerSecond(it == impl_->data.cables.end() ? 0 : it->second);
}
bool Cluster::has_cables() const { return !impl_->data.cables.empty(); }
bool Cluster::on_summing_switch(Id device) const {
  return impl_->data.on_summing_switch.contains(impl_->data.vertex_of[device]);
}
const software::Library& Cluster::library() const { return impl_->data.library; }
void Cluster::use_library(software::Library library) {
  impl_->paths.changed();
  impl_->data.library = std::move(library);
}
int Cluster::shared_cores() const { return impl_->data.shared_cores; }
void Cluster::share_cores(int cores) { impl_->data.shared_cores = cores; }
void Cluster::replace_kind(Id kind, DeviceKind by) { impl_->data.kinds[kind] = std::move(by); }
void Cluster::scale_links(std::span<const Id> links, double bandwidth, double latency) {
  assert(bandwidth > 0 && latency > 0);
  impl_->paths.changed();
  Tables& data = impl_->data;
  for (const Id id : links) {
    Link& link = data.links[id];
    if (id < 2 * data.ends.size()) {
      auto [from, to] = data.ends[id / 2];
      if (id % 2 == 1) std::swap(from, to);
      if (const auto cable = data.cables.find({from, to}); cable != data.cables.end())
        cable->second += (bandwidth - 1) * link.bandwidth.value;
    }
    link.bandwidth = bandwidth * link.bandwidth;
    link.latency = latency * link.latency;
  }
}
void Cluster::scale_hosts(double link, double bandwidth) {
  for (Host& host : impl_->data.hosts) {
    host.link = link * host.link;
    host.bandwidth = bandwidth * host.bandwidth;
  }
}
void Cluster::reserve_memory(Bytes reserve) {
  for (DeviceKind& kind : impl_->data.kinds) kind.reserve = reserve;
}

std::uint64_t Cluster::hash() const {
  const Tables& data = impl_->data;
  Fnv fnv;
  for (const DeviceKind& k : data.kinds) {
    fnv.add(k.name);
    for (double number :
         {k.memory.value, k.peak_f32.value, k.peak_f16.value, k.peak_bf16.value,
          k.memory_bandwidth.value, k.efficiency, k.f32_efficiency, k.memory_efficiency,
          k.attention_efficiency, double(k.multiprocessors), k.peak_tf32.value, k.launch.value,
          k.idle.value, k.busy.value, k.calibrated ? 1.0 : 0.0})
      fnv.add(number);
    if (k.flash_efficiency != k.attention_efficiency) fnv.add(k.flash_efficiency);
    if (k.collective_share != 0) fnv.add(k.collective_share);
    if (k.peak_fp8.value > 0) fnv.add("fp8"), fnv.add(k.peak_fp8.value);
  }
  for (const Device& d : data.devices)
    fnv.add(d.name), fnv.add(std::uint64_t{d.kind}), fnv.add(std::uint64_t{d.node});
  for (const RouteVertex& v : data.vertices)
    fnv.add(v.name + (v.sums ? " sums" : "")), fnv.add(std::uint64_t{v.node});
  for (const auto& [a, b] : data.ends) fnv.add(std::uint64_t{a}), fnv.add(std::uint64_t{b});
  for (const Link& l : data.links)
    fnv.add(l.name + (l.nvlink ? " nvlink" : "")), fnv.add(l.bandwidth.value),
        fnv.add(l.latency.value);
  for (const int size : data.torus.sizes) fnv.add(static_cast<std::uint64_t>(size));
  fnv.add(static_cast<std::uint64_t>(data.shared_cores));
  const software::Library& library = data.library;
  for (const Seconds s : {library.launch, library.in_node, library.across}) fnv.add(s.value);
  if (!library.protocols.empty()) fnv.add(software::text_of(library));
  return fnv.value();
}

}  // namespace rehearse::cluster
