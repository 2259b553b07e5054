// A cluster: a graph of devices, switches and NICs (Boost.Graph inside) with directed links that
// have a bandwidth and a latency. Links are what transfers share; a non-blocking switch is a vertex
// and costs nothing. Hosts do not forward: a path never crosses a node that is neither its
// beginning nor its end.
//
// The distance of two devices is that of the cheapest path by 1/bandwidth (the edge weights of Sun
// 2026, section 3.2). A transfer takes the path past switches and hosts that is fastest for its
// size, latency + bytes / bandwidth: a short one that of the least latency, a long one the widest.
// Only where no cable joins two devices may the cheapest path between them cross a third, as NCCL's
// does. Equal paths tie by hops, then by name, so they are the same on every machine.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/program.h"

namespace rehearse::cluster {

/// One kind of accelerator (or CPU core). Peak rates are dense matrix rates of the data sheet; the
/// efficiency curve says how much of them a matrix product of a size reaches: rate = peak *
/// efficiency * flops / (flops + half_flops).
struct DeviceKind {
  std::string name = {};
  Bytes memory = {};
  Bytes reserve = {};  // of it, what no plan may use: the driver's, the network library's
  FlopsPerSecond peak_f32 = {}, peak_f16 = {}, peak_bf16 = {};  // bf16 0: not supported
  BytesPerSecond memory_bandwidth = {};
  double efficiency = 1;         // fraction of peak that large matrix products reach
  double memory_efficiency = 1;  // fraction of memory bandwidth that element-wise kernels reach
  Flops half_flops = {};         // size of a matrix product at which half of that is reached
  Seconds launch = {};           // per kernel
  Watts idle = {}, busy = {};
  bool calibrated = false;  // efficiencies were measured, not assumed
  std::string source = {};

  /// What plans may use of the memory.
  Bytes usable() const { return std::max(Bytes(0), memory - reserve); }
};

struct Device {
  std::string name = {};  // "node3/gpu1"
  Id kind = 0, node = 0;
};

/// One direction of a cable, bus or NVLink brick bundle.
struct Link {
  std::string name = {};
  BytesPerSecond bandwidth = {};
  Seconds latency = {};
};

/// A path between two devices, and what a transfer takes that has it to itself: latency + bytes /
/// bandwidth.
struct Path {
  std::vector<Id> links = {};     // directed, from the first device to the second
  Seconds latency = {};           // sum
  BytesPerSecond bandwidth = {};  // smallest
};
/// The way that is fastest for so many bytes; of equal ones the first. `ways` must not be empty.
const Path& fastest(std::span<const Path> ways, double bytes);

class Cluster {
 public:
  Cluster();
  Cluster(const Cluster&);
  Cluster(Cluster&&) noexcept;
  Cluster& operator=(const Cluster&);
  Cluster& operator=(Cluster&&) noexcept;
  ~Cluster();

  Id add_kind(DeviceKind kind);
  Id add_device(std::string name, Id kind, Id node);  // returns the device's index
  /// A switch, NIC or root complex; returns a vertex. `node`: the node it is a part of, none for
  /// what stands between nodes.
  Id add_vertex(std::string name, Id node = none);
  Id vertex_of(Id device) const;
  /// Full duplex: two directed links, NAME from a to b and NAME.back from b to a; without a name,
  /// "a>b" and "b>a". Returns the first; the second is its successor.
  Id connect(Id vertex_a, Id vertex_b, std::string name, BytesPerSecond bandwidth, Seconds latency);

  const std::string& name() const;
  void rename(std::string name);
  std::span<const Device> devices() const;
  std::span<const DeviceKind> kinds() const;
  std::span<const Link> links() const;
  const DeviceKind& kind_of(Id device) const;
  int nodes() const;
  /// The ways from device a to device b, each the fastest for some size, by latency; empty when a
  /// == b. Found when first asked for and kept until the cluster changes. Throws InputError when
  /// there is no path.
  std::span<const Path> ways(Id a, Id b) const;
  /// Directed links of the way that is fastest for a transfer of `bytes`; empty when a == b.
  std::span<const Id> path(Id a, Id b, double bytes) const;
  /// ... of the cheapest path by 1/bandwidth: distances.
  std::span<const Id> path(Id a, Id b) const;
  Seconds latency(Id a, Id b) const;           // sum over the cheapest path
  BytesPerSecond bandwidth(Id a, Id b) const;  // smallest on the cheapest path
  /// Host cores that all ranks of a node share for compute, communication and apply work; 0 where
  /// devices have their own engines for each (a GPU with its NIC).
  int shared_cores() const;
  void share_cores(int cores);
  /// Of each device's memory, in place of what the device table reserves.
  void reserve_memory(Bytes reserve);
  /// Of everything that is not derived; left out are the name, and what is reserved of memory,
  /// which changes no time.
  std::uint64_t hash() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A platform by name (platforms/paper.toml) or by path to a TOML file; "dgx-a100:16" has 16 nodes,
/// "this-machine:4" four ranks on this host. docs/platforms.md describes the files.
Cluster load_cluster(const std::string& name_or_path);
std::vector<std::string> known_clusters();
/// The device table (platforms/devices.toml) by name.
DeviceKind load_device(const std::string& name);
std::vector<std::string> known_devices();

}  // namespace rehearse::cluster
